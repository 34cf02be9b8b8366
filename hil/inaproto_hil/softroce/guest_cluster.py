"""Host daemons and workers in the guest, each a process: what an installation is, with the switch outside."""

from __future__ import annotations

import sys
from pathlib import Path

from inaproto.daemon.net.names import CONTROL_SOCKET
from inaproto_hil.rigs.cluster import ClusterConfig, LocalCluster
from inaproto_hil.softroce.network import CONTROL_GATEWAY


class GuestCluster(LocalCluster):
    """In the place of the switch is the relay of its control socket; hosts are those of the guest, in order.

    ``host_options`` come behind the choice of the RoCE device.
    """

    def __init__(self, config: ClusterConfig, *, control_port: int, log_dir: Path | None = None) -> None:
        super().__init__(config, log_dir=log_dir)
        self._control_port = control_port

    def _start(self) -> None:
        self.switches.append(self._daemon("switch", self._switch_argv()))
        self._wait_ready(self.switches)
        for host in range(self.config.hosts):
            self.hosts.append(self._host(host, self.directory, "--nic", "verbs", *self.config.host_options))
            # One by one: all share one emulated core, and a switch does not wait for ever for a host's words.
            self._wait_ready(self.hosts[-1:])

    def _switch_argv(self) -> list[str]:
        socket = str(self.directory / CONTROL_SOCKET)
        relay = "inaproto_hil.softroce.relay"
        return [sys.executable, "-P", "-m", relay, socket, CONTROL_GATEWAY, str(self._control_port)]
