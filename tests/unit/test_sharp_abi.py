"""The layout table of libsharp_coll, judged by a C compiler, and the command that has it judged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from inaproto.errors import ConfigError
from inaproto_adapters.sharp import abi
from inaproto_adapters.sharp_command import sharp

OURS: Final = Path(__file__).resolve().parents[1] / "doubles"
ALTERED: Final = {
    "a member that is longer": ("int user_progress_num_polls;", "long user_progress_num_polls;"),
    "two members in another order": ("int rank;\n    int size;", "int size;\n    int rank;"),
    "a member more": ("uint64_t job_id;", "int version;\n    uint64_t job_id;"),
    "a member less": ("    int max_groups;\n", ""),
    "reserved words fewer": (
        "    size_t offset;\n    int reserved[2];",
        "    size_t offset;\n    int reserved[1];",
    ),
    "a callback without its root": (
        "int bytes, int root);\n    int (*barrier)",
        "int bytes);\n    int (*barrier)",
    ),
    "types before 3.0": (
        "SHARP_DTYPE_BFLOAT16 = 9, SHARP_DTYPE_UINT8 = 10, SHARP_DTYPE_INT8 = 11,\n    SHARP_DTYPE_NULL = 12",
        "SHARP_DTYPE_NULL = 9",
    ),
    "an error of another number": ("SHARP_COLL_ELOCK_FAILED = -18", "SHARP_COLL_ELOCK_FAILED = -21"),
    "a function with a parameter more": (
        "int sharp_coll_finalize(struct sharp_coll_context *context);",
        "int sharp_coll_finalize(struct sharp_coll_context *context, int flags);",
    ),
    "a member of the union elsewhere": ("unsigned count;", "uint64_t type;\n            unsigned count;"),
    "a default that is a function": (
        "extern const struct sharp_coll_config sharp_coll_default_config;",
        "const struct sharp_coll_config *sharp_coll_default_config(void);",
    ),
}
NAMED: Final = {
    "a member that is longer": "sharp_coll_config.user_progress_num_polls",
    "two members in another order": "sharp_coll_comm_init_spec.rank",
    "a member more": "sharp_coll_init_spec.job_id",
    "a member less": "sharp_coll_caps.resources.max_groups",
    "reserved words fewer": "sharp_coll_reduce_spec.reserved",
    "a callback without its root": "sharp_coll_out_of_band_colls.bcast",
    "types before 3.0": "SHARP_DTYPE_NULL",
    "an error of another number": "SHARP_COLL_ELOCK_FAILED",
    "a function with a parameter more": "sharp_coll_finalize",
    "a member of the union elsewhere": "sharp_coll_data_desc.iov.count",
    "a default that is a function": "sharp_coll_default_config",
}


@pytest.fixture(autouse=True)
def _compiled(program: Callable[[str], Path]) -> None:
    program("cc")


def altered(folder: Path, old: str, new: str) -> Path:
    text = (OURS / abi.HEADER).read_text()
    assert text.count(old) == 1
    file = folder / abi.HEADER
    file.parent.mkdir(parents=True)
    file.write_text(text.replace(old, new))
    return folder


def test_our_header_is_as_the_table_has_it() -> None:
    report = abi.check(OURS)
    assert report.passes
    assert report.absent == ()
    assert report.asked > 200


@pytest.mark.parametrize("how", ALTERED)
def test_what_differs_is_named(tmp_path: Path, how: str) -> None:
    report = abi.check(altered(tmp_path, *ALTERED[how]))
    assert NAMED[how] in [its.about for its in report.mismatches]


def test_a_function_that_older_libraries_lack_is_told_and_no_mismatch(tmp_path: Path) -> None:
    old = (
        "int sharp_coll_reg_mr_v2(struct sharp_coll_context *context, void *buffer, size_t bytes,\n"
        "                         const struct sharp_coll_reg_params *params, void **mr);\n"
    )
    report = abi.check(altered(tmp_path, old, ""))
    assert report.passes
    assert report.absent == ("sharp_coll_reg_mr_v2",)


def test_a_folder_without_the_header_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no sharp/api"):
        abi.check(tmp_path)


def test_the_command_tells_what_differs_and_fails(tmp_path: Path) -> None:
    folder = altered(tmp_path, *ALTERED["types before 3.0"])
    done = CliRunner().invoke(sharp, ["abi-check", "--include", str(folder)])
    assert done.exit_code == 1
    assert "SHARP_DTYPE_NULL: expected 12" in done.output
    done = CliRunner().invoke(sharp, ["abi-check", "--include", str(folder), "--json"])
    assert done.exit_code == 1
    assert "SHARP_DTYPE_NULL" in [its["about"] for its in json.loads(done.output)["mismatches"]]


def test_a_passing_check_is_recorded_for_the_bytes_of_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    library = tmp_path / "libsharp_coll.so"
    library.write_bytes(b"one")
    assert not abi.has_passed(library)
    done = CliRunner().invoke(sharp, ["abi-check", "--include", str(OURS), "--library", str(library)])
    assert done.exit_code == 0, done.output
    assert abi.has_passed(library)
    library.write_bytes(b"another")
    assert not abi.has_passed(library)
