"""A learning Ethernet bridge: how the switch forwards everything that is not aggregated.

Source addresses are learnt per port; known unicast goes to its port, the rest is flooded. A frame
is never sent back to the port it came from. The table is bounded: when it is full, the address that
was learnt first makes room.
"""

from __future__ import annotations

_GROUP_BIT = 1


class Bridge:
    def __init__(self, *, addresses_max: int = 4096) -> None:
        self._addresses_max = addresses_max
        self._port_of: dict[bytes, int] = {}
        self._ports: dict[int, None] = {}

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(self._ports)

    @property
    def addresses(self) -> dict[bytes, int]:
        return dict(self._port_of)

    def port_up(self, port: int) -> None:
        self._ports[port] = None

    def port_down(self, port: int) -> None:
        """Forget the port and the addresses behind it."""
        self._ports.pop(port, None)
        self._port_of = {mac: at for mac, at in self._port_of.items() if at != port}

    def learn(self, mac: bytes, port: int) -> None:
        if self._port_of.get(mac) == port or not mac or mac[0] & _GROUP_BIT:
            return
        if mac not in self._port_of and len(self._port_of) >= self._addresses_max:
            del self._port_of[next(iter(self._port_of))]
        self._port_of[mac] = port

    def egress(self, mac: bytes, ingress: int) -> tuple[int, ...]:
        """Ports on which a frame for ``mac`` leaves that came in on ``ingress``."""
        port = self._port_of.get(mac)
        if port is not None and port in self._ports:
            return () if port == ingress else (port,)
        return tuple(other for other in self._ports if other != ingress)
