"""Scenario files: what they mean, and how bad ones are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from inaproto.errors import ConfigError
from inaproto_controller.cluster import graph_file
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.cluster.model import CLUSTER, SHARING, measured
from inaproto_controller.cluster.requests import HISTOGRAMS, Request, draw_requests
from inaproto_controller.cluster.step_times import Speeds
from inaproto_controller.cluster.topology import FatTree, Quota
from inaproto_controller.simulate import failures
from inaproto_controller.simulate.scenario.document import document
from inaproto_controller.simulate.scenario.file import ClusterTable, MigrationTable
from inaproto_controller.simulate.scenario.runs import Task, run_all, run_one
from inaproto_controller.simulate.scenario.scenario import load_scenario
from inaproto_controller.simulate.setting import FREE, Migration
from tests.controller.scenarios import SMALL, loaded, written

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "cluster.toml"
CLUSTER_TABLE = "[cluster]\ndegree = 8\n"
JOB = '[[jobs]]\nmodel = "opt-125m-4"\nhosts = 4\nsteps = 10\n'
MODEL = "[models.mine]\n"
STREAM = "[stream]\ncount = 5\n"
WRONG = {
    "no TOML": ("[cluster", "is not TOML"),
    "no cluster": (JOB, "cluster: is missing"),
    "no shape": ("[cluster]\n" + JOB, "cluster: give either degree, or down and up, or graph"),
    "both shapes": (
        "[cluster]\ndegree = 8\ndown = [4]\nup = [1]\n" + JOB,
        "cluster: give either degree, or down and up, or graph",
    ),
    "odd degree": ("[cluster]\ndegree = 7\n" + JOB, "cluster.degree: 7 is not allowed"),
    "unequal layers": ("[cluster]\ndown = [4, 4]\nup = [1]\n" + JOB, "as many positive numbers each"),
    "no whole uplinks": (
        "[cluster]\ndegree = 8\noversubscription = 3.0\n" + JOB,
        "cluster: oversubscription 3: no whole uplinks for 4 downlinks; allowed: 4, 2, 1.33333, 1",
    ),
    "unknown key": ("[cluster]\ndegre = 8\n" + JOB, "cluster.degre: no such key, did you mean 'degree'?"),
    "unknown table": (CLUSTER_TABLE + JOB + "[speed]\n", "speed: no such key, did you mean 'speeds'?"),
    "unknown key of a job": (
        CLUSTER_TABLE + JOB + "host = 3\n",
        "jobs[0].host: no such key, did you mean 'hosts'?; keys are model, hosts, steps, count, arrival",
    ),
    "quota": ("[cluster]\ndegree = 8\nquota = 'port'\n" + JOB, "cluster.quota: 'port' is not allowed"),
    "truth for a number": (CLUSTER_TABLE + JOB + "count = true\n", "jobs[0].count: True is not allowed"),
    "no finite number": (
        CLUSTER_TABLE + JOB + "[speeds]\nlatency = nan\n",
        "speeds.latency: nan is not allowed",
    ),
    "preset": (CLUSTER_TABLE + JOB + "[speeds]\npreset = 'fast'\n", "speeds.preset: 'fast' is not allowed"),
    "release after the end": (
        CLUSTER_TABLE + JOB + "[migration]\nrelease = 1.0\ntotal = 0.5\n",
        "migration: release 1 is later than total 0.5",
    ),
    "no jobs": (CLUSTER_TABLE, "jobs: there are none; give [[jobs]], [stream], or an arrival log"),
    "unknown model": (
        CLUSTER_TABLE + JOB.replace("opt-125m-4", "opt-125-4"),
        "jobs[0].model: no model 'opt-125-4', did you mean 'opt-125m-4'?; there are",
    ),
    "too large a job": (
        CLUSTER_TABLE + JOB.replace("hosts = 4", "hosts = 129"),
        "jobs[0].hosts: 129 is not allowed: the cluster has 128",
    ),
    "too large a stream": (
        "[cluster]\ndegree = 4\n" + STREAM + "trace = 3\n",
        "stream.trace: draws jobs of up to 48 hosts, but the cluster has 16",
    ),
    "no host counts": (CLUSTER_TABLE + STREAM, "stream: give either trace or hosts"),
    "bad host counts": (
        CLUSTER_TABLE + STREAM + "hosts = { x = 1 }\n",
        "no host counts; write {4 = 2, 8 = 1}",
    ),
    "no such trace": (CLUSTER_TABLE + STREAM + "trace = 11\n", "stream.trace: 11 is not allowed"),
    "unknown model of a stream": (
        CLUSTER_TABLE + STREAM + "trace = 2\nmodels = ['opt-125m-4', 'mine']\n",
        "stream.models[1]: no model 'mine'",
    ),
    "half a model": (
        CLUSTER_TABLE + JOB + MODEL + "duration = 1.0\n",
        "models.mine: give either file, or duration and allreduces",
    ),
    "unknown key of a model": (
        CLUSTER_TABLE + JOB + MODEL + "time = 1.0\n",
        "models.mine.time: no such key; keys are file, duration, allreduces",
    ),
    "a model's starts do not ascend": (
        CLUSTER_TABLE
        + JOB
        + MODEL
        + "duration = 1.0\nallreduces = [{start=0.2, size=1}, {start=0.1, size=1}]\n",
        "models.mine: needs all-reduces whose starts ascend from 0",
    ),
    "a model without size": (
        CLUSTER_TABLE + JOB + MODEL + "duration = 1.0\nallreduces = [{start=0.2}]\n",
        "models.mine.allreduces[0].size: is missing",
    ),
    "no file of a model": (
        CLUSTER_TABLE + JOB + MODEL + "file = 'none.json'\n",
        "models.mine.file: FOLDER/none.json: cannot be read: No such file or directory",
    ),
    "a measured model's name": (
        CLUSTER_TABLE + JOB + "[models.opt-125m-4]\nfile = 'x.json'\n",
        "models.opt-125m-4: is part of inaproto; give yours another name",
    ),
    "a model that nobody has": (
        CLUSTER_TABLE + JOB + MODEL + "duration = 1.0\nallreduces = [{start=0.2, size=1}]\n",
        "models.mine: no job has it",
    ),
    "rate without poisson": (
        CLUSTER_TABLE + JOB + "[arrivals]\nrate = 1.0\n",
        'arrivals: rate and process = "poisson" belong together',
    ),
    "log and jobs": (
        CLUSTER_TABLE + JOB + "[arrivals]\nprocess = 'log'\nfile = 'log.csv'\n",
        "arrivals.file:",
    ),
    "unknown placement": (
        CLUSTER_TABLE + JOB + "[[compare]]\nplacement = 'least'\n",
        "compare[0]: placement 'least'; allowed: first, random, least-fragments",
    ),
    "unknown trees": (
        CLUSTER_TABLE + JOB + "[[compare]]\n[[compare]]\ntrees = 'exclusiv'\n",
        "compare[1]: trees 'exclusiv', did you mean 'exclusive'?; allowed:",
    ),
    "unknown policy": (
        CLUSTER_TABLE + JOB + "[[compare]]\npolicy = 'smart'\n",
        "compare[0].policy: 'smart' is not allowed: it should be 'none', 'greedy' or 'score'",
    ),
    "unknown tree option": (
        CLUSTER_TABLE + JOB + "[[compare]]\ntree_options = { k = 3 }\n",
        "compare[0].tree_options: trees 'sticky' has no option 'k'",
    ),
    "two of a name": (
        CLUSTER_TABLE + JOB + "[[compare]]\n[[compare]]\n",
        "compare[1]: another one is called 'least-fragments / sticky / score', too",
    ),
    "seeds twice": ("seeds = [1, 1]\n" + CLUSTER_TABLE + JOB, "seeds: at least one, each once"),
    "failures without an end": (
        CLUSTER_TABLE + JOB + "[failures]\nhost_mtbf = 100.0\nhost_mttr = 10.0\n",
        "failures: are drawn up to a limit; give until, too",
    ),
    "half of a reliability": (
        "until = 5.0\n" + CLUSTER_TABLE + JOB + "[failures]\nhost_mtbf = 100.0\n",
        "failures: mtbf and mttr belong together",
    ),
    "rows of no size": (
        "until = 5.0\n" + CLUSTER_TABLE + JOB + "[failures]\nrow_mtbf = 100.0\nrow_mttr = 5.0\n",
        "failures: row_racks: say how many racks a row has",
    ),
    "rows that never fail": (
        "until = 5.0\n"
        + CLUSTER_TABLE
        + JOB
        + "[failures]\nhost_mtbf = 100.0\nhost_mttr = 5.0\nrow_racks = 2\n",
        "failures: row_racks: for row_mtbf and row_mttr, or for rows in file",
    ),
    "no failures": ("until = 5.0\n" + CLUSTER_TABLE + JOB + "[failures]\n", "failures: give either file, or"),
    "no file of failures": (
        CLUSTER_TABLE + JOB + "[failures]\nfile = 'none.json'\n",
        "failures.file: FOLDER/none.json: cannot be read",
    ),
    "too many digits": (f"until = {'9' * 5000}\n" + CLUSTER_TABLE + JOB, "is not TOML: Exceeds the limit"),
    "too many brackets": ("x = " + "[" * 20_000, "is not TOML: brackets within brackets, too many"),
    "a time behind all clocks": (
        CLUSTER_TABLE + JOB + "arrival = 1e308\n",
        "jobs[0].arrival: 1e+308 is not allowed: it should be less than or equal to 1000000000",
    ),
    "a step that never ends": (
        CLUSTER_TABLE + JOB + "[speeds]\nbandwidth = 5e-324\n",
        "speeds: a step of opt-125m-4 takes inf s without INA; more than 0 and at most 1e+09",
    ),
    "a step of no time": (
        CLUSTER_TABLE
        + JOB.replace("opt-125m-4", "mine")
        + "[speeds]\nlatency = 0.0\nbandwidth = 1e308\nina_ratio = 1e308\n"
        + MODEL
        + "duration = 0.0\nallreduces = [{start=0.0, size=1}]\n",
        "speeds: a step of mine takes 0 s with INA; more than 0",
    ),
    "a size that no integer is": (
        CLUSTER_TABLE + JOB + MODEL + f"duration = 1.0\nallreduces = [{{start=0.2, size={'9' * 400}}}]\n",
        "models.mine.allreduces[0].size: ",
    ),
    "repaired in no time": (
        "until = 5.0\n" + CLUSTER_TABLE + JOB + "[failures]\nhost_mtbf = 100.0\nhost_mttr = 0.0\n",
        "failures.host_mttr: 0.0 is not allowed: it should be greater than 0",
    ),
    "words as a tree option": (
        CLUSTER_TABLE + JOB + "[[compare]]\ntrees = 'rebuild-all'\ntree_options = { candidates_max = 'x' }\n",
        "compare[0].tree_options: candidates_max 'x': a finite number, true or false",
    ),
    "half a candidate": (
        CLUSTER_TABLE + JOB + "[[compare]]\ntrees = 'rebuild-all'\ntree_options = { candidates_max = 2.5 }\n",
        "compare[0].tree_options: candidates_max 2.5: an integer",
    ),
    "no number as a tree option": (
        CLUSTER_TABLE + JOB + "[[compare]]\ntree_options = { downtime = nan }\n",
        "compare[0].tree_options: downtime nan: a finite number",
    ),
    "a seed as a tree option": (
        CLUSTER_TABLE + JOB + "[[compare]]\ntrees = 'rebuild-all'\ntree_options = { seed = 1 }\n",
        "compare[0].tree_options: trees 'rebuild-all' has no option 'seed'",
    ),
    "a log's name that is none": (
        CLUSTER_TABLE + '[arrivals]\nprocess = "log"\nfile = "a\\u0000.csv"\n',
        "arrivals.file: ",
    ),
    "a graph's name that is none": ('[cluster]\ngraph = "a\\u0000.json"\n' + JOB, "cluster.graph: "),
    "a failure file's name that is none": (
        CLUSTER_TABLE + JOB + '[failures]\nfile = "a\\u0000"\n',
        "cannot be read: embedded null byte",
    ),
    "seeds of no kind": (
        "seeds = 2.0\n" + CLUSTER_TABLE + JOB,
        "seeds: 2.0 is not allowed: it should be a list",
    ),
    "a number for a table": ("cluster = 3\n" + JOB, "cluster: 3 is not allowed: it should be a table"),
    "a name that cannot be printed": (
        CLUSTER_TABLE + JOB + '[[compare]]\nname = "a\\u001bb"\n',
        "compare[0].name: 'a\\x1bb': characters that cannot be printed",
    ),
    "a title of two lines": (
        'title = "a\\nb"\n' + CLUSTER_TABLE + JOB,
        "title: 'a\\nb': characters that cannot be printed",
    ),
    "a model that cannot be printed": (
        CLUSTER_TABLE + JOB + '[models."a\\u0001"]\nfile = "m.json"\n',
        "models.'a\\x01': 'a\\x01': characters that cannot be printed",
    ),
    "a model without a name": (
        CLUSTER_TABLE + JOB + '[models.""]\nfile = "m.json"\n',
        "models.'': '' is not allowed",
    ),
    "no seeds": ("seeds = 0\n" + CLUSTER_TABLE + JOB, "seeds: 0 is not allowed"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_bad_scenario_is_refused_by_file_key_and_what_is_allowed(what: str, tmp_path: Path) -> None:
    text, said = WRONG[what]
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        load_scenario(path)
    message = str(refused.value)
    assert all(line.startswith(f"scenario {path}: ") for line in message.splitlines())
    assert said.replace("FOLDER", str(tmp_path)) in message


def test_all_bad_keys_are_named_at_once(tmp_path: Path) -> None:
    text = "[cluster]\ndegree = 7\n" + JOB.replace("steps = 10", "steps = 0")
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, text)
    assert [line.split(": ")[1] for line in str(refused.value).splitlines()] == [
        "cluster.degree",
        "jobs[0].steps",
    ]


@pytest.mark.parametrize(
    "content",
    [
        "null",
        "",
        "[]",
        "{}",
        '{"duration": 1, "allreduces": []}',
        '{"duration": 1, "allreduces": [{}]}',
        '{"duration": NaN, "allreduces": [{"start": 0, "size": 1}]}',
        '{"duration": 1, "allreduces": [{"start": Infinity, "size": 1}]}',
        '{"duration": 1, "allreduces": [{"start": 0, "size": Infinity}]}',
        pytest.param(
            '{"duration": 1, "allreduces": [{"start": 0, "size": 1' + "0" * 400 + "}]}", id="digits"
        ),
        pytest.param("[" * 100_000, id="brackets"),
    ],
)
def test_a_bad_trace_is_refused_by_its_file(content: str, tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(content)
    with pytest.raises(ConfigError, match=r"models\.mine\.file: .*trace\.json"):
        loaded(tmp_path, CLUSTER_TABLE + JOB + MODEL + "file = 'trace.json'\n")


def test_a_log_without_jobs(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("arrival_seconds,model,hosts,steps\n")
    with pytest.raises(ConfigError, match=r"arrivals\.file: .*jobs\.csv: there are no jobs in it"):
        loaded(tmp_path, CLUSTER_TABLE + "[arrivals]\nprocess = 'log'\nfile = 'jobs.csv'\n")


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load_scenario(path).cluster.hosts == 16


def test_a_scenario_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"scenario /none\.toml: cannot be read: No such file"):
        load_scenario(Path("/none.toml"))


# -- what it means


@pytest.mark.parametrize(
    ("ratio", "tree"),
    [(None, ((4, 4, 8), (1, 4, 4))), (1.0, ((4, 4, 8), (1, 4, 4))), (2.0, ((4, 4, 8), (1, 2, 2)))],
)
def test_degree_and_oversubscription(
    ratio: float | None, tree: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    assert ClusterTable(degree=8, oversubscription=ratio).tree() == FatTree(*tree)


def test_defaults(tmp_path: Path) -> None:
    scenario = loaded(tmp_path, CLUSTER_TABLE + JOB)
    assert scenario.file.speeds.speeds() == CLUSTER
    assert scenario.file.migration.migration() == Migration()
    assert [variant.label for variant in scenario.variants] == ["least-fragments / sticky / score"]
    assert scenario.workload(0) == ([Request("opt-125m-4", 4, 10)], [0.0])


def test_migration_can_be_turned_off(tmp_path: Path) -> None:
    scenario = loaded(tmp_path, CLUSTER_TABLE + JOB + "[migration]\ntotal = 0\n")
    assert scenario.file.migration.migration() == FREE


def test_a_preset_is_a_start(tmp_path: Path) -> None:
    scenario = loaded(tmp_path, CLUSTER_TABLE + JOB + "[speeds]\npreset = 'sharing'\nlatency = 0\n")
    expected = Speeds(SHARING.bandwidth, SHARING.ina_ratio, 0.0, SHARING.gpu_speedup)
    assert scenario.file.speeds.speeds() == expected


def test_models_of_ones_own_are_inline_or_in_a_file(tmp_path: Path) -> None:
    fields = {"duration": 0.5, "allreduces": [{"start": 0.1, "size": 10}]}
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "b.json").write_text(json.dumps(fields))
    text = (
        CLUSTER_TABLE
        + "[models.a]\nduration = 0.5\nallreduces = [{start = 0.1, size = 10}]\n"
        + "[models.b]\nfile = 'traces/b.json'\n"
        + JOB.replace("opt-125m-4", "a")
        + JOB.replace("opt-125m-4", "b")
    )
    scenario = loaded(tmp_path, text)
    inline, in_file = scenario.trace("a"), scenario.trace("b")
    assert (inline.duration, inline.ready, inline.nbytes) == (0.5, (0.1,), (10,))
    assert (in_file.duration, in_file.ready, in_file.nbytes) == (0.5, (0.1,), (10,))
    assert scenario.trace("opt-125m-4") == measured("opt-125m-4")


def test_a_stream_with_a_seed_is_the_published_one_for_all_seeds(tmp_path: Path) -> None:
    scenario = loaded(tmp_path, CLUSTER_TABLE + "[stream]\ncount = 30\ntrace = 2\nseed = 42\n")
    published = draw_requests(HISTOGRAMS[2], 30)
    assert scenario.workload(0).requests == published
    assert scenario.workload(7).requests == published


def test_seeds_draw_jobs_and_arrivals_of_their_own(tmp_path: Path) -> None:
    scenario = loaded(tmp_path)
    assert scenario.workload(1) == scenario.workload(1)
    assert scenario.workload(1) != scenario.workload(2)
    requests, arrivals = scenario.workload(1)
    assert list(arrivals) == sorted(arrivals)
    assert len(requests) == len(arrivals) == 13


def test_a_job_s_own_arrival_is_kept(tmp_path: Path) -> None:
    text = CLUSTER_TABLE + JOB + "arrival = 9.0\n" + JOB + "count = 2\n"
    requests, arrivals = loaded(tmp_path, text).workload(0)
    assert list(arrivals) == [0.0, 0.0, 9.0]
    assert len(requests) == 3


def test_jobs_of_a_log(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("arrival_seconds,model,hosts,steps\n0.5,opt-125m-4,2,10\n1,mine,3,20\n")
    text = (
        CLUSTER_TABLE
        + "[arrivals]\nprocess = 'log'\nfile = 'log.csv'\n"
        + MODEL
        + "duration = 1.0\nallreduces = [{start=0.2, size=1}]\n"
    )
    requests, arrivals = loaded(tmp_path, text).workload(0)
    assert list(requests) == [Request("opt-125m-4", 2, 10), Request("mine", 3, 20)]
    assert list(arrivals) == [0.5, 1.0]
    (tmp_path / "log.csv").write_text("arrival_seconds,model,hosts,steps\n0.5,opt-125m-4,2,10\n1,mine,x,20\n")
    with pytest.raises(ConfigError, match=r"arrivals\.file: .*log\.csv: line 3: hosts 'x': an integer"):
        load_scenario(tmp_path / "scenario.toml")
    (tmp_path / "log.csv").write_text("arrival_seconds,model,hosts,steps\n0.5,mine,200,10\n")
    with pytest.raises(ConfigError, match=r"log\.csv: line 2: hosts 200: the cluster has 128"):
        load_scenario(tmp_path / "scenario.toml")


def test_tree_options_go_to_the_builder(tmp_path: Path) -> None:
    text = CLUSTER_TABLE + JOB + "[[compare]]\ntrees = 'rebuild-all'\ntree_options = { candidates_max = 2 }\n"
    scenario = loaded(tmp_path, text)
    assert scenario.variants[0].label == "least-fragments / rebuild-all / score / candidates_max 2"


def test_the_small_scenario_of_these_tests_is_right(tmp_path: Path) -> None:
    assert len(loaded(tmp_path, SMALL).variants) == 2


def test_sticky_trees_weigh_what_a_change_costs_here() -> None:
    scenario = load_scenario(EXAMPLE)
    number = next(place for place, one in enumerate(scenario.variants) if one.trees == "sticky")
    migrations = []
    for total in (0.0, 1e6):
        file = scenario.file.model_copy(update={"migration": MigrationTable(total=total)})
        runs = [run_one(Task(replace(scenario, file=file), number, seed, False)) for seed in range(3)]
        migrations.append(sum(run.measures["migrations"] for run in runs))
    assert migrations[0] > 0
    assert migrations[1] == 0


def graph_of(tree: FatTree, jobs: int = 1) -> str:
    return json.dumps(graph_file.document(GraphTopology.of_fat_tree(tree, Quota.SWITCH, jobs=jobs)))


def test_a_cluster_of_any_shape_comes_from_a_file(tmp_path: Path) -> None:
    """The same cluster as a graph gives the same results."""
    (tmp_path / "cluster.json").write_text(graph_of(FatTree((4, 4), (1, 2))))
    shape = 'down = [4, 4]\nup = [1, 2]\nquota = "switch"\n'
    assert shape in SMALL
    scenarios = [loaded(tmp_path, SMALL), loaded(tmp_path, SMALL.replace(shape, 'graph = "cluster.json"\n'))]
    tree, graph = (run_all(scenario, (0, 1), jobs=1) for scenario in scenarios)
    assert tree == graph
    found = document(scenarios[1], (0, 1), graph)["cluster"]
    assert (found["hosts"], found["switches"], found["links"], found["quota"]) == (16, [6], 24, None)


def test_switches_that_sum_for_more_jobs_save_more(tmp_path: Path) -> None:
    saved = []
    shape = 'down = [4, 4]\nup = [1, 2]\nquota = "switch"\n'
    for jobs in (1, 4):
        (tmp_path / "cluster.json").write_text(graph_of(FatTree((4, 4), (1, 2)), jobs))
        scenario = loaded(tmp_path, SMALL.replace(shape, 'graph = "cluster.json"\n'))
        saved.append([run.measures["score"] for run in run_all(scenario, (0, 1), jobs=1)])
    for one, more in zip(*saved, strict=True):
        assert one is not None
        assert more is not None
        assert one < more


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("degree = 4", "cluster: graph says it all; leave the other keys out"),
        ("quota = 'link'", "cluster: graph says it all; leave the other keys out"),
    ],
)
def test_a_graph_that_cannot_be_simulated(more: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text(graph_of(FatTree((4, 4), (1, 2))))
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, f"[cluster]\ngraph = 'cluster.json'\n{more}\n{JOB}")
    assert said in str(refused.value)


def test_a_graph_with_a_fault_is_named(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{"hosts": ["h0"], "switches": [], "links": []}')
    with pytest.raises(ConfigError, match=r"cluster\.graph: .*cluster\.json: host h0: no link leads to it"):
        loaded(tmp_path, f"[cluster]\ngraph = 'cluster.json'\n{JOB}")


def test_failures_are_drawn_or_listed_alike_for_all_variants(tmp_path: Path) -> None:
    drawn = (
        "until = 60.0\n" + SMALL + "[failures]\nhost_mtbf = 100.0\nhost_mttr = 5.0\ncheckpoint_steps = 5\n"
    )
    scenario = loaded(tmp_path, drawn)
    settings = [scenario.setting(variant, 3) for variant in scenario.variants]
    events = [scenario.failures(setting, 3) for setting in settings]
    assert events[0]
    assert events[0] == events[1]
    assert events[0] != scenario.failures(settings[0], 4)
    assert sum(run.measures["restarts"] for run in run_all(scenario, (3, 4), jobs=1)) > 0
    (tmp_path / "failures.json").write_text(json.dumps(failures.document(events[0])))
    listed = loaded(tmp_path, SMALL + "[failures]\nfile = 'failures.json'\n")
    assert listed.failures(settings[0], 0) == events[0]


def test_rows_fail_as_the_file_says(tmp_path: Path) -> None:
    """Of rows of one rack there are four."""
    drawn = "until = 60.0\n" + SMALL + "[failures]\nrow_racks = 1\nrow_mtbf = 20.0\nrow_mttr = 5.0\n"
    scenario = loaded(tmp_path, drawn)
    setting = scenario.setting(scenario.variants[0], 3)
    events = scenario.failures(setting, 3)
    assert {(event.part, event.number) for event in events} == {(failures.Part.ROW, row) for row in range(4)}
    runs = run_all(scenario, (3,), jobs=1)
    assert all(run.measures["restarts"] > 0 for run in runs)
    (tmp_path / "failures.json").write_text(json.dumps(failures.document(events)))
    listed = loaded(
        tmp_path, "until = 60.0\n" + SMALL + "[failures]\nrow_racks = 1\nfile = 'failures.json'\n"
    )
    assert run_all(listed, (3,), jobs=1) == runs
