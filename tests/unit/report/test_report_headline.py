import msgspec

from compilation_sample import compilation, sample
from kinetoscope.document import Health, IdleRow, Note, ReplayRow
from kinetoscope.document.compilation import Coverage, Frame, GraphBreak, Recompilation
from kinetoscope.document.steps import Spread, StepRound
from kinetoscope.render.blocks import Heading, Prose
from kinetoscope.views import findings, graph_names, headline, page, steps
from report_sample import as_it_runs, device, graph, host_only, report, timing


def test_the_headline_describes_one_device():
    assert headline.headline(report()) == (
        "As recorded, under the profiler, the GPU was busy 40.0 % of 3 steps (10.0 ms each); 60.0 % idle, "
        "mostly launch-bound. "
        "Its work: 60.0 % pointwise and 40.0 % matmul."
    )


def test_several_ranks_give_their_range():
    steps = [msgspec.structs.replace(step, rank=rank) for rank in (0, 1) for step in report().steps]
    text = headline.headline(
        report(devices=[device(), device(rank=1, busy_fraction=0.25, idle_us=22_500.0)], steps=steps)
    )
    assert text.startswith(
        "As recorded, under the profiler, the 2 GPUs were busy 25.0 % to 40.0 % of 3 steps on 2 ranks "
        "(10.0 ms each); 60.0 % to 75.0 % idle"
    )


def test_the_title_names_the_file_that_holds_all_traces_else_their_folder():
    def title(*paths: str) -> str:
        one = report().sources[0]
        return headline.title(report(sources=[msgspec.structs.replace(one, path=path) for path in paths]))[0]

    assert title("runs/x.sqlite", "runs/x.sqlite") == "x.sqlite (2 traces)"
    assert title("runs/rank0.json", "runs/rank1.json") == "runs (2 traces)"
    assert title("runs/node0/rank0.json", "runs/node1/rank1.json") == "runs (2 traces)"
    assert title("run-1/trace/rank0.json", "run-1/trace/rank1.json") == "run-1 (2 traces)"
    assert title("runs/x.json") == "x.json"


def test_uneven_steps_give_median_mean_and_range():
    steps = [
        msgspec.structs.replace(step, duration_us=duration)
        for step, duration in zip(report().steps, (10_000.0, 12_000.0, 31_000.0), strict=True)
    ]
    assert "3 steps (median 12.0 ms, mean 17.7 ms, 10.0–31.0 ms)" in headline.headline(report(steps=steps))


def test_a_cause_of_less_than_half_is_not_called_most():
    causes = [
        IdleRow(device=0, cause=cause, idle_us=time, share_of_window=time / 30_000)
        for cause, time in (("host-op", 8_000.0), ("data-loading", 6_000.0), ("unexplained", 4_000.0))
    ]
    assert "60.0 % idle, 44.4 % of that host-op." in headline.headline(report(idle=causes))


def test_causes_of_several_devices_are_shares_of_all_their_time():
    two = report(devices=[device(), device(device=1)])
    assert [(row.cause, row.share_of_window) for row in headline.idle_causes(two)] == [
        ("launch-bound", 0.21),
        ("synchronization", 0.09),
    ]


def test_waiting_inside_collectives_is_no_work():
    assert "waited" not in headline.headline(report())
    waited = [
        msgspec.structs.replace(report().idle[0], busy_inside_collectives_us=time)
        for time in (2_000.0, 4_000.0)
    ]
    two = report(idle=waited, devices=[device(), device(rank=1)])
    assert headline.headline(two).endswith(
        " 10.0 % of GPU time (6.00 ms) was spent inside collectives, waiting for another rank."
    )


def test_a_saving_says_of_what():
    (row,) = report().findings
    assert findings.saving(report(), row) == "saves about 12.6 ms per step"
    freed = msgspec.structs.replace(row, saving_on_critical_path=False)
    assert findings.saving(report(steps=[]), freed) == "frees about 12.6 ms of device time"


def test_what_a_finding_above_saves_already_is_not_promised_again():
    (row,) = report().findings
    owned = msgspec.structs.replace(row, saving_us=100.0, share_of_step=0.001, also="graph-break")
    assert findings.saving(report(), owned) == (
        "saves about 12.6 ms per step alone, nothing on top of those above: most of it is what graph-break "
        "saves"
    )
    nothing = msgspec.structs.replace(owned, saving_us=0.0)
    assert findings.saving(report(), nothing) == findings.saving(report(), owned)
    part = msgspec.structs.replace(row, saving_us=2_000.0, share_of_step=0.06, also="graph-break")
    assert findings.saving(report(), part).startswith(
        "saves about 12.6 ms per step alone, 2.00 ms on top of those above"
    )
    grown = msgspec.structs.replace(row, saving_alone_us=500.0)  # once those above are followed
    assert findings.saving(report(), grown) == (
        "saves about 500 µs per step alone, 12.6 ms on top of those above"
    )


def test_what_is_saved_under_a_condition_says_so_and_is_in_no_sum():
    (row,) = report().findings
    maybe = msgspec.structs.replace(
        row, saving_us=0.0, saving_alone_us=9_000.0, share_of_step=0.0, saving_condition="inputs come again"
    )
    assert findings.saving(report(), maybe) == "saves about 9.00 ms per step if inputs come again"
    waits = msgspec.structs.replace(maybe, ranks=[0], paced_by=1)
    assert findings.saving(report(), waits) == (
        "saves about 9.00 ms of rank 0's own step: rank 1 sets the pace of all, if inputs come again"
    )


def test_where_the_replay_is_far_off_savings_are_rough():
    (row,) = report().findings
    replay = ReplayRow(
        rank=0, step_us=31_000.0, recorded_us=31_000.0, error=0.31, unexplained=0.0, pace=1.0,
        critical_path=[],
        joint_saving_us=18_400.0,
    )  # fmt: skip
    rough = report(findings=[row, row], replay=replay)
    assert findings.saving(rough, row) == "saves about 10 ms per step"
    assert "about 20 ms: a step of 31.0 ms would take about 10 ms" in findings.together(rough)
    assert "31.0 %, so that figures are rough" in findings.together(rough)
    # What is left is said to the place that the saving is: 31 ms less 5 ms are not 30 ms.
    little = report(findings=[row, row], replay=msgspec.structs.replace(replay, joint_saving_us=4_800.0))
    assert "about 5 ms: a step of 31.0 ms would take about 26 ms" in findings.together(little)


def test_what_all_findings_save_together_is_said_with_the_error_of_the_replay():
    (row,) = report().findings
    replay = ReplayRow(
        rank=0,
        step_us=30_000.0,
        recorded_us=31_000.0,
        error=-0.0123,
        unexplained=0.0,
        pace=1.0,
        critical_path=[],
        joint_saving_us=18_000.0,
    )
    assert findings.together(report(findings=[row, row], replay=replay)) == (
        "All together they save about 18.0 ms: a step of 31.0 ms would take about 13.0 ms. Savings overlap, "
        "so each figure is what that fix adds to those above it. Error of the model: 1.2 %."
    )
    # With a cold start in it, the mean that savings are of is not what a step takes.
    cold = msgspec.structs.replace(row, saving_us=49_000.0, share_of_step=0.46)
    replay = msgspec.structs.replace(replay, joint_saving_us=98_000.0, savings_of_us=49_000.0 / 0.46)
    assert findings.together(report(findings=[cold, cold], replay=replay)).startswith(
        "All together they save about 98.0 ms: a step of 107 ms at the mean (31.0 ms at the median) would "
        "take about 8.52 ms. Savings"
    )
    assert findings.together(report(findings=[row], replay=replay)) == ""
    assert findings.together(report(findings=[row, row])) == ""


def test_where_no_finding_saves_what_matters_that_is_said_before_them():
    (row,) = report().findings
    low = msgspec.structs.replace(
        row, severity="low", saving_us=500.0, saving_high_us=900.0, share_of_step=0.008
    )
    said = (
        "There is little to gain here: none of these saves more than 0.8 % of the step, and runs of one "
        "program differ by as much."
    )
    assert findings.little(report(findings=[low])) == said
    assert Prose(said) in list(findings.section(report(findings=[low]), 3))
    for larger in (
        row,
        msgspec.structs.replace(low, severity="medium"),
        msgspec.structs.replace(low, saving_us=0.0, saving_high_us=9_000.0),  # not predicted, at most so much
        msgspec.structs.replace(low, saving_us=0.0, paced_by=1),
        msgspec.structs.replace(low, saving_us=0.0, saving_bytes=1 << 30),
    ):
        assert findings.little(report(findings=[low, larger])) == ""
    assert findings.little(report(findings=[])) == ""


def test_what_a_rank_that_waits_would_save_is_of_its_own_step():
    (row,) = report().findings
    paced = msgspec.structs.replace(
        row, saving_us=0.0, saving_alone_us=9_000.0, share_of_step=0.0, also=None, ranks=[0], paced_by=1
    )
    assert findings.saving(report(findings=[paced]), paced) == (
        "saves about 9.00 ms of rank 0's own step: rank 1 sets the pace of all"
    )
    some = msgspec.structs.replace(paced, saving_us=1_000.0, share_of_step=0.03, ranks=[0, 2])
    assert findings.saving(report(findings=[some]), some) == (
        "saves about 1.00 ms per step, 9.00 ms of these ranks' own steps: rank 1 sets the pace of all"
    )


def test_findings_that_only_inform_ask_for_nothing():
    (row,) = report().findings
    inform = msgspec.structs.replace(row, severity="info")
    assert findings.worth_doing(report(findings=[inform, row])) == [row]


def test_what_the_profiler_costs_is_no_advice_on_the_program():
    (row,) = report().findings
    slowed = msgspec.structs.replace(row, severity="medium", of_the_profiler=True)
    assert findings.worth_doing(report(findings=[slowed, row])) == [row]


def test_notes_that_only_inform_are_no_weakness():
    notes = [
        Note(code="a", text="first", gravity="degraded", rank=0),
        Note(code="b", text="second", gravity="info", rank=0),
    ]
    assert headline.notes(report(health=Health(verdict="degraded", notes=notes))) == ["first"]


def test_a_note_that_several_ranks_share_is_said_once():
    notes = [
        Note(code="a", text="half is missing", rank=3),
        Note(code="a", text="a tenth is missing", rank=1),
        Note(code="b", text="about all"),
    ]
    sources = [msgspec.structs.replace(report().sources[0], rank=rank) for rank in (1, 3)]
    assert headline.notes(report(sources=sources, health=Health(verdict="degraded", notes=notes))) == [
        "rank 3 (and 1 rank more): half is missing",
        "about all",
    ]


def test_compiled_graphs_are_told_apart():
    rows = [
        graph(),
        graph(direction="backward", hash="fdef"),
        graph(compile_id=None, direction="", hash="fghi" * 9),
    ]
    assert graph_names.graph_labels(report(graphs=rows)) == ["0/0 forward", "0/0 backward", "fghifghi"]
    twice = [graph(), graph(hash="fdef")]
    assert graph_names.graph_labels(report(graphs=twice)) == ["0/0 forward fabc", "0/0 forward fdef"]


def test_without_a_device_the_ops_lead():
    assert headline.headline(host_only()) == (
        "No device work was recorded. On the host, as recorded under the profiler, 3 steps (10.0 ms each): "
        "3.00 ms in ops and runtime calls, 70.0 % in aten::mm and 30.0 % in aten::add."
    )
    nothing = msgspec.structs.replace(host_only(), ops=[])
    assert headline.headline(nothing) == "The recording holds neither device work nor ops."


def test_the_programs_own_step_stands_first_and_the_recorded_one_beside_it():
    own = report(as_it_runs=as_it_runs(), timings=[timing()])
    assert headline.headline(own) == (
        "As it runs, a step takes 8.00 ms (median of 40, p10–p90 7.90–8.30 ms); the GPU is busy 50.0 % of "
        "it, 50.0 % idle, mostly launch-bound. Its work: 60.0 % pointwise and 40.0 % matmul."
    )
    assert headline.timing(own) == (
        "As recorded, under the profiler: the GPU was busy 40.0 % of 3 steps (10.0 ms each); 60.0 % idle, "
        "mostly launch-bound; its step takes 25.0 % longer."
    )
    assert steps.own_idle(own) == [("launch-bound", 0.375), ("synchronization", 0.125)]
    assert headline.recorded_window(own) == "3 steps (10.0 ms each), as recorded"


def test_a_bare_trace_says_so_once():
    assert headline.timing(report()) is None
    assert steps.own_step(report()) is None
    assert headline.recorded_window(report()) == "3 steps (10.0 ms each)"


def test_what_takes_many_times_as_long_is_no_percentage():
    def inflation(ratio: float) -> str:
        return steps.inflation(report(as_it_runs=as_it_runs(inflation=ratio)))

    assert inflation(111.5) == "its step takes 111.5 times as long"
    assert inflation(2.27) == "its step takes 2.3 times as long"
    assert inflation(2.0) == "its step takes 100 % longer"
    assert inflation(0.9) == "its step takes 10.0 % less"
    assert steps.inflation(report(as_it_runs=as_it_runs(inflation=None))) == ""


def test_a_pace_that_drifts_is_said():
    drifting = as_it_runs(drift=True, before_us=7_000.0, after_us=9_000.0)
    assert str(headline.timing(report(as_it_runs=drifting))).endswith(
        "Its pace drifts: 7.00 ms per step before the recording (20 steps), 9.00 ms after it (20)."
    )
    assert "drifts" not in str(headline.timing(report(as_it_runs=as_it_runs())))


def test_a_mean_of_few_steps_and_the_slowest_rank():
    few = as_it_runs(before_us=None, after_us=None, rank=1)
    text = steps.own_step(report(as_it_runs=few, timings=[timing(), timing(rank=1)]))
    assert str(text).startswith(
        "As it runs, a step takes 8.00 ms on the slowest rank (1) (mean of 40); the GPU"
    )


def test_a_mean_that_is_not_near_the_median_is_said_with_its_reason():
    found = StepRound(steps=10, seen=4, round_us=200_000.0, between_us=120_000.0, per_step_us=20_000.0)
    text = str(steps.own_step(report(as_it_runs=as_it_runs(mean_us=20_000.0, round=found))))
    assert (
        "(median of 40, p10–p90 7.90–8.30 ms), 20.0 ms with its share of what comes after every 10 and takes "
        "120 ms (200 ms a round); the GPU"
    ) in text
    spread = Spread(median=8_000.0, p10=3_000.0, p90=15_000.0, low=7_950.0, high=8_100.0, n=40)

    def said(mean_us: float) -> str:
        return str(steps.own_step(report(as_it_runs=as_it_runs(step_us=spread, mean_us=mean_us))))

    assert "15.0 ms), 9.00 ms at the mean, since a tenth of them takes 15.0 ms or longer; the GPU" in said(
        9_000.0
    )
    assert ", 7.00 ms at the mean, since a tenth of them takes 3.00 ms or less" in said(7_000.0)
    assert ", 2.50 ms at the mean of these and of later ones; the GPU" in said(2_500.0)
    assert "at the mean" not in said(8_300.0)


def test_the_own_step_of_a_program_without_a_device():
    own = msgspec.structs.replace(
        host_only(), as_it_runs=as_it_runs(busy_fraction=None, busy_us=None, idle=[])
    )
    assert headline.headline(own).startswith(
        "As it runs, a step takes 8.00 ms (median of 40, p10–p90 7.90–8.30 ms). No device work was recorded. "
        "On the host, 3 steps"
    )
    assert headline.timing(own) == (
        "As recorded, under the profiler: 3 steps (10.0 ms each); its step takes 25.0 % longer."
    )


def test_compilation_in_a_line():
    facts = compilation(
        sample(Frame, compile_id="0/0"),
        sample(Frame, compile_id="0/1"),
        compile_s=2.5,
        graph_breaks=(sample(GraphBreak, count=3),),
        recompilations=(sample(Recompilation),),
        coverage=Coverage(compiled_share_of_device_time=0.75),
    )
    assert headline.compilation(report(compilation=facts)) == (
        "torch.compile: 2 frames · 1 graph break · 1 recompilation · 2.50 s compiling · "
        "75.0 % of GPU time in compiled graphs"
    )


def test_the_title_names_file_device_and_steps():
    assert headline.title(report()) == ["trace.json.gz", "NVIDIA H200", "torch 2.11.0", "3 steps"]
    assert headline.title(host_only()) == ["trace.json.gz", "no GPU in the recording", "3 steps"]
    assert headline.title(report(devices=[device(), device(device=1)]))[1] == "2 × NVIDIA H200"


def test_ranks_without_gpus_are_said_not_to_be_compared():
    source = host_only().sources[0]
    two = msgspec.structs.replace(
        host_only(), sources=[source, msgspec.structs.replace(source, rank=1, path="b.json")]
    )
    assert "Its 2 ranks are not compared" in headline.headline(two)
    assert "not compared" not in headline.headline(host_only())


def test_the_page_of_a_report_without_findings_says_so_first_and_then_where_time_goes():
    for plain in (report(findings=[]), host_only()):
        words = page.sentences(plain, ["trace.json.gz"])
        first, *others = words.blocks["first"]
        assert isinstance(first, Heading)
        assert first.title == page.UNREMARKABLE
        assert others == [Prose(words.headline)]
    empty = msgspec.structs.replace(host_only(), ops=[])
    assert [block.title for block in page.sentences(empty, ["x"]).blocks["first"]] == [  # pyright: ignore
        "The recording holds neither device work nor ops."
    ]


def test_a_compile_log_is_called_one():
    log = msgspec.structs.replace(host_only(), ops=[], steps=[], compilation=compilation())
    assert headline.title(log) == ["trace.json.gz", "a compile log"]
