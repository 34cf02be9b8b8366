"""Whether a packet filter drops RoCEv2 (UDP port 4791).

A RoCE device in hardware takes its packets before any filter sees them; Soft-RoCE gets them through the
kernel's UDP, a softnic on a real link by AF_PACKET, which is before the filter too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from inaproto.doctor.findings import Check, Finding, failed, ok, untestable, warning
from inaproto.doctor.site import Ran, Site
from inaproto.pasted import as_root

PORT: Final = 4791
_FOR_ROOT: Final = re.compile("not permitted|denied|must be root")
_ALLOW: Final = f"nft add rule inet filter input udp dport {PORT} accept"


def _look(site: Site) -> Iterator[Finding]:
    nft = site.run(["nft", "list", "ruleset"])
    legacy = site.run(["iptables-save"])
    if nft is None and legacy is None:
        yield untestable("neither nft nor iptables is installed; if nothing filters, nothing is dropped")
        return
    read = False
    if nft is not None and not nft.status:
        read = True
        yield look_at_nft(nft.output)
    if legacy is not None and not legacy.status and legacy.output.strip():
        read = True
        yield look_at_iptables(legacy.output)
    if not read:
        yield _look_at_refusals(site, {"nft": nft, "iptables": legacy})


def _look_at_refusals(site: Site, programs: Mapping[str, Ran | None]) -> Finding:
    """``programs``: by what they print when they do not show the rules."""
    unknown = f"whether UDP {PORT} is dropped is not known"
    told = {name: ran.output.strip().partition("\n")[0] for name, ran in programs.items() if ran is not None}
    said = "; ".join(f"{name}: {words or 'nothing'}" for name, words in told.items())
    if not any(_FOR_ROOT.search(words) for words in told.values()):
        return untestable(f"{unknown}: {said}")
    if site.is_root:
        return untestable(f"{unknown}: {said}", "look on the machine itself, if this is a container of it")
    return untestable(f"{unknown}: the rules are for root alone", as_root(site.again))


def look_at_nft(text: str) -> Finding:
    """``text``: what ``nft list ruleset`` prints. A rule that jumps elsewhere is not followed."""
    rules = [line.strip() for line in text.splitlines()]
    mentions = [rule for rule in rules if re.search(rf"\bdport\b.*\b{PORT}\b", rule)]
    dropped = [rule for rule in mentions if re.search(r"\b(drop|reject)\b", rule)]
    if dropped:
        return failed(f"nft: {dropped[0]!r}", f"nft -a list ruleset; delete that rule, then {_ALLOW}")
    if any(re.search(r"\baccept\b", rule) for rule in mentions):
        return ok(f"nft accepts UDP {PORT}")
    if re.search(r"hook input [^;]*;\s*policy drop", text):
        return warning(f"nft drops what no rule accepts, and none names UDP {PORT}", _ALLOW)
    return ok(f"nft does not drop UDP {PORT}")


def look_at_iptables(text: str) -> Finding:
    """``text``: what ``iptables-save`` prints."""
    allow = f"iptables -I INPUT -p udp --dport {PORT} -j ACCEPT"
    mentions = [line for line in text.splitlines() if re.search(rf"--dports?\s+\S*\b{PORT}\b", line)]
    dropped = [line for line in mentions if re.search(r"-j (DROP|REJECT)", line)]
    if dropped:
        return failed(f"iptables: {dropped[0]!r}", f"{dropped[0].replace('-A ', 'iptables -D ', 1)}; {allow}")
    if any("-j ACCEPT" in line for line in mentions):
        return ok(f"iptables accepts UDP {PORT}")
    if re.search(r"^:INPUT (DROP|REJECT)", text, re.MULTILINE):
        return warning(f"iptables drops what no rule accepts, and none names UDP {PORT}", allow)
    return ok(f"iptables does not drop UDP {PORT}")


FIREWALL: Final = Check(
    "firewall", "Soft-RoCE gets no packet whose port a filter drops, and no one is told", _look
)
