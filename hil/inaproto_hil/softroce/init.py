"""What the guest's kernel starts: it turns into the machine's own system, read-only, and runs the agent.

The root is that of the machine, by 9p, under a tmpfs that takes writes: Python, the environment and the
checkout lie at the paths that they have outside. ``/out`` is shared both ways.
"""

from __future__ import annotations

from typing import Final

TEXT: Final = r"""#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs devtmpfs /dev
/bin/busybox --install -s /bin
export PATH=/bin
fail() { echo "GUEST-FAILED $1"; sync; poweroff -f; }
while read name; do insmod /mods/$name.ko || fail "insmod $name"; done < /mods/order
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=524288 hostroot /host \
  || fail "the machine's root"
mount -t tmpfs tmpfs /rw
mkdir /rw/up /rw/work
mount -t overlay -o lowerdir=/host,upperdir=/rw/up,workdir=/rw/work overlay /new || fail "overlay"
mount -t proc proc /new/proc
mount -t sysfs sysfs /new/sys
mount -t devtmpfs devtmpfs /new/dev
mkdir -p /new/dev/pts /new/dev/shm /new/out
mount -t devpts devpts /new/dev/pts
mount -t tmpfs tmpfs /new/run
mount -t tmpfs tmpfs /new/dev/shm
mount -t 9p -o trans=virtio,version=9p2000.L,cache=none,msize=262144 hostout /new/out || fail "/out"
ip link set lo up
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
chroot /new /bin/sh /out/job.sh
echo "GUEST-RC $?"
sync
poweroff -f
"""
