"""A small Report made by hand, to render."""

from __future__ import annotations

from typing import Any

import msgspec

from kinetoscope.document import (
    AsItRunsRow,
    CategoryRow,
    CauseRow,
    DeviceRow,
    EnvironmentRow,
    Evidence,
    FindingRow,
    GraphCategory,
    GraphRow,
    Health,
    IdleRow,
    KernelOp,
    KernelRow,
    Note,
    OpRow,
    Report,
    SourceRow,
    Spread,
    StepRow,
    TimingRow,
    Waiting,
)

# What a trace from a stranger may hold where we expect a name.
HOSTILE = [
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "</style><style>body { display: none }</style>",
    "</script><script>window.hacked = 1</script>",
    '" onmouseover="window.hacked = 1" x="',
    "{{ 7 * 7 }}{% raw %}",
    "[red]not markup[/red] [link=https://example.org]x[/link]",
    "\x1b[31mred\x1b[0m\x1b]8;;https://example.org\x07link\x1b]8;;\x07",
    "\u202egnp.exe\u202c \u2066isolate",
    "a\r\nb\tc\u2028d",
    "lone \ud800 surrogate",
    "| a | `b` | **c** | [d](javascript:alert(1)) | @someone #1",
    "x" * 5000,
]


def device(**changes: Any) -> DeviceRow:
    row = DeviceRow(
        rank=0,
        device=0,
        name="NVIDIA H200",
        window_us=30_000.0,
        span_us=28_000.0,
        busy_us=12_000.0,
        busy_fraction=0.4,
        busy_fraction_of_span=12 / 28,
        compute_us=9_000.0,
        copy_us=1_500.0,
        communication_us=3_000.0,
        exposed_communication_us=2_000.0,
        idle_us=18_000.0,
        device_time_us=13_500.0,
        kernel_launches=300,
        unattributed_kernels=2,
        launches_without_kernel=0,
        device_events=310,
        window_basis="steps",
    )
    return msgspec.structs.replace(row, **changes)


def kernel(name: str = "triton_poi_fused_add_mul_0", **changes: Any) -> KernelRow:
    row = KernelRow(
        name=name,
        short_name=name,
        category="pointwise",
        launches=30,
        device_time_us=5_400.0,
        share_of_device_time=0.4,
        mean_us=180.0,
        median_us=170.0,
        min_us=90.0,
        max_us=410.0,
        p90_us=300.0,
        ops=[KernelOp(name="aten::add", launches=30, device_time_us=5_400.0)],
        kind="kernel",
    )
    return msgspec.structs.replace(row, **changes)


def report(**changes: Any) -> Report:
    """A GPU busy for 40 % of three steps."""
    whole = Report(
        kinetoscope="0.1.0",
        sources=[
            SourceRow(path="runs/trace.json.gz", bytes=123_456, events=9_876, rank=0, complete=True, notes=[])
        ],
        environment=EnvironmentRow(device_names=["NVIDIA H200"], torch="2.11.0"),
        devices=[device()],
        categories=[
            CategoryRow(
                category="pointwise",
                device_time_us=8_100.0,
                share_of_device_time=0.6,
                share_of_window=0.27,
                launches=200,
                distinct_kernels=2,
            ),
            CategoryRow(
                category="matmul",
                device_time_us=5_400.0,
                share_of_device_time=0.4,
                share_of_window=0.18,
                launches=110,
                distinct_kernels=1,
            ),
        ],
        kernels=[
            kernel(),
            kernel("nvjet_sm90_tst_128x128_64x6_2x1_v_bz_NNT", category="matmul"),
            kernel("triton_poi_fused_relu_1", share_of_device_time=0.2, device_time_us=2_700.0),
        ],
        steps=[
            StepRow(
                name=f"ProfilerStep#{number}",
                start_us=10_000.0 * number,
                duration_us=10_000.0,
                host_duration_us=9_000.0,
                busy_us=4_000.0,
                launches=100,
                device_time_us=4_500.0,
                rank=0,
            )
            for number in (1, 2, 3)
        ],
        ops=[
            OpRow(
                name="aten::add",
                kind="cpu_op",
                calls=200,
                host_self_us=900.0,
                host_total_us=1_200.0,
                device_self_us=8_100.0,
                device_total_us=8_100.0,
            ),
            OpRow(
                name="aten::mm",
                kind="cpu_op",
                calls=110,
                host_self_us=2_100.0,
                host_total_us=2_100.0,
                device_self_us=5_400.0,
                device_total_us=5_400.0,
            ),
            OpRow(
                name="ProfilerStep*",
                kind="user_annotation",
                calls=3,
                host_self_us=27_000.0,
                host_total_us=30_000.0,
                device_self_us=0.0,
                device_total_us=13_500.0,
            ),
            OpRow(
                name="triton_poi_fused_add_mul_0",
                kind="kernel",
                calls=30,
                host_self_us=0.0,
                host_total_us=0.0,
                device_self_us=5_400.0,
                device_total_us=5_400.0,
            ),
        ],
        findings=[
            FindingRow(
                rule="overhead-bound",
                severity="high",
                title="The host launches work more slowly than the GPU does it",
                saving_us=12_600.0,
                saving_alone_us=12_600.0,
                saving_basis="idle time before kernels that started as soon as they were launched",
                evidence=[Evidence(text="412 gaps of 5 to 60 µs", start_us=10.0, end_us=20.0, events=(1, 2))],
                advice='Compile the step with mode="reduce-overhead", or make the batch larger.',
                source="train.py:41",
                saving_on_critical_path=True,
            )
        ],
        health=Health(verdict="good", notes=[]),
        idle=[
            IdleRow(device=0, cause="launch-bound", idle_us=12_600.0, share_of_window=0.42),
            IdleRow(device=0, cause="synchronization", idle_us=5_400.0, share_of_window=0.18),
        ],
    )
    return msgspec.structs.replace(whole, **changes)


def graph(**changes: Any) -> GraphRow:
    row = GraphRow(
        graph="0/0 forward fabc",
        hash="fabc",
        compile_id="0/0",
        direction="forward",
        calls=3,
        host_us=2_000.0,
        launches=200,
        device_time_us=6_750.0,
        share_of_device_time=0.5,
        categories=[
            GraphCategory(
                category=category,
                launches=100,
                device_time_us=6_750.0 * share,
                share_of_graph=share,
                share_of_device_time=share / 2,
            )
            for category, share in (("pointwise", 0.75), ("matmul", 0.25))
        ],
    )
    return msgspec.structs.replace(row, **changes)


def timing(**changes: Any) -> TimingRow:
    row = TimingRow(
        rank=0,
        found_by="optimizer",
        unprofiled_us=8_000.0,
        profiled_us=10_000.0,
    )
    return msgspec.structs.replace(row, **changes)


def as_it_runs(**changes: Any) -> AsItRunsRow:
    """A step of 8 ms, busy half of it, which takes 10 ms as recorded."""
    row = AsItRunsRow(
        rank=0,
        step_us=Spread(median=8_000.0, p10=7_900.0, p90=8_300.0, low=7_950.0, high=8_100.0, n=40),
        busy_fraction=0.5,
        idle=[
            CauseRow(cause="launch-bound", idle_us=3_000.0),
            CauseRow(cause="synchronization", idle_us=1_000.0),
        ],
        waiting=Waiting(data_us=0.0, sync_us=900.0, gc_us=0.0),
        basis="device time of the light pass (3 steps, 100% of its kernels matched) over 40 steps",
        busy_us=4_000.0,
        n_before=20,
        n_after=20,
        before_us=7_990.0,
        after_us=8_010.0,
        drift=False,
        recorded_step_us=10_000.0,
        inflation=1.25,
    )
    return msgspec.structs.replace(row, **changes)


def host_only() -> Report:
    """The same program on a machine without a GPU."""
    return report(
        devices=[],
        categories=[],
        kernels=[],
        findings=[],
        idle=[],
        environment=EnvironmentRow(device_names=[]),
    )


def hostile() -> Report:
    """Every name that came from outside is one of ``HOSTILE``, in turn."""
    base = report()
    return report(
        sources=[
            msgspec.structs.replace(base.sources[0], path=f"runs/{name}.json", notes=[name])
            for name in HOSTILE[:-1]
        ],
        environment=EnvironmentRow(
            device_names=HOSTILE,
            torch=HOSTILE[0],
            host=HOSTILE[1],
            variables={name: name for name in HOSTILE},
        ),
        devices=[device(name=name, device=number) for number, name in enumerate(HOSTILE)],
        categories=[msgspec.structs.replace(base.categories[0], category=name) for name in HOSTILE],
        kernels=[
            kernel(
                name,
                category=name,
                ops=[KernelOp(name=name, launches=1, device_time_us=1.0)],
                source=name,
                graph=name,
            )
            for name in HOSTILE
        ],
        steps=[msgspec.structs.replace(base.steps[0], name=name) for name in HOSTILE],
        ops=[msgspec.structs.replace(base.ops[0], name=name) for name in HOSTILE],
        findings=[
            msgspec.structs.replace(
                base.findings[0],
                rule=name,
                severity=name,
                title=name,
                advice=name,
                source=name,
                saving_basis=name,
                snippet=name,
                proof=f"kinetoscope tune -- {name}",
                measured_saving_us=1.0,
                measured_basis=name if number % 2 else None,
                measured_verdict=name if number % 2 else None,
                evidence=[Evidence(text=name, start_us=0.0, end_us=1.0, events=())],
            )
            for number, name in enumerate(HOSTILE)
        ],
        unread=HOSTILE,
        health=Health(
            verdict="degraded",
            notes=[Note(code=name, text=name, share_of_device_time=0.1) for name in HOSTILE],
        ),
        idle=[IdleRow(device=0, cause=name, idle_us=10.0, share_of_window=0.01) for name in HOSTILE],
        graphs=[
            graph(
                graph=name,
                hash=name,
                compile_id=name,
                direction=name,
                categories=[msgspec.structs.replace(graph().categories[0], category=name)],
            )
            for name in HOSTILE
        ],
    )
