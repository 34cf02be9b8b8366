#!/bin/sh
set -e

if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    units=$(systemctl list-units --plain --no-legend --all 'inaproto-*.service' | cut -d ' ' -f 1)
    [ -z "$units" ] || deb-systemd-invoke stop $units || true
fi
py3clean -p inaproto
