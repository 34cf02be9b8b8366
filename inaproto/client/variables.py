"""The environment variables that begin with ``INAPROTO_``, and slips of the pen in them.

Each daemon reads one for each field of its settings, training processes and commands read some of their own.
A process is warned of a variable that looks like one of these and is none: ``INAPROTO_RNAK=1`` would else be
as good as nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final

PREFIX: Final = "INAPROTO_"
SIMILAR: Final = 0.85
"""How like one that is read a variable's name is to be a slip of the pen (difflib's ratio)."""

_SETTINGS: Final = """
    accelerator adapter agents_listen busy_polls capacity_model capture capture_mb cluster collective
    collective_kib_min collective_timeout_ms control control_listen controller cpus dcqcn_mbit dir fabric
    fabric_root gid host_gbit_s ip job_secret jobs_max lease_ms link_latency_us link_mbps
    link_probe_kib listen log_format log_level mac memory_kib message_packets metrics
    models models_ip models_nic models_port models_tls moderation mtu mtu_max name nic
    operation_timeout_ms placement pool_rings port ports_max ranks_max recover_ms relaxed_ordering report_ms
    retry_count rings_max router_lid seed selective service_level shards share_max stall_ms store switch
    switch_mbps tcp tensor_kib tls token_days traffic_class transport_timeout trees tracing ufm
    ufm_answer_ms ufm_by ufm_ca ufm_credentials ufm_guids ufm_pkeys vlan weather window_messages
"""
"""Fields of the daemons' settings, which stand above this package; a test compares."""
_OF_COMMANDS: Final = """
    crashes crash_seed job job_api job_submission kernels key host_socket new_pictures path pyverbs rank
    rank_memory require rotation run seed seeds size torch torch_without
    verbs_pair
"""
"""What training processes, commands and the tests read."""
KNOWN: Final = frozenset(PREFIX + name.upper() for name in (_SETTINGS + _OF_COMMANDS).split())


def slips(environment: Mapping[str, str]) -> list[str]:
    """A sentence for each misspelt variable, for people."""
    return [
        f"environment variable {variable} is not known, did you mean {close}?"
        for variable, close in misspelt(environment)
    ]


def misspelt(environment: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Variables that begin like ours and are not known, each with the known one that it looks like.

    Others that begin so belong to training scripts.
    """
    known = sorted(KNOWN)
    for variable in sorted(environment):
        if variable.startswith(PREFIX) and variable not in KNOWN:
            close = get_close_matches(variable, known, n=1, cutoff=SIMILAR)
            if close:
                yield variable, close[0]
