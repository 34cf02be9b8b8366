#!/bin/sh
set -e

if [ "$1" = purge ]; then
    rm -f /etc/systemd/system/*.wants/inaproto-*.service
    rm -rf /etc/systemd/system/inaproto-*.service.d
    rm -rf /etc/inaproto /var/lib/inaproto /run/inaproto
    if getent passwd inaproto >/dev/null; then
        userdel inaproto
    fi
    if getent group inaproto >/dev/null; then
        groupdel inaproto
    fi
fi
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
    if [ "$1" = purge ]; then
        systemctl reset-failed 'inaproto-*.service' 2>/dev/null || true
    fi
fi
