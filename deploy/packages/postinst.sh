#!/bin/sh
set -e

if [ "$1" = configure ]; then
    systemd-sysusers inaproto.conf
    if command -v systemd-tmpfiles >/dev/null; then
        systemd-tmpfiles --create inaproto.conf
    else
        install -d -o inaproto -g inaproto -m 0750 /run/inaproto
    fi
    py3compile -p inaproto /usr/lib/inaproto
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload || true
        if [ -n "$2" ]; then # an upgrade: what runs goes on with the new version
            units=$(systemctl list-units --plain --no-legend --state=active 'inaproto-*.service' | cut -d ' ' -f 1)
            [ -z "$units" ] || deb-systemd-invoke try-restart $units || true
        fi
    fi
fi
