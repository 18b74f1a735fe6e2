from __future__ import annotations

from typing import Any

import pytest

from kinetoscope.capture.process import environment
from kinetoscope.capture.process.ranks import rank_and_world
from kinetoscope.hardware import nvml


def test_only_variables_known_to_matter_are_kept(monkeypatch: pytest.MonkeyPatch):
    kept = {
        "TORCH_LOGS": "+dynamo",
        "CUDA_VISIBLE_DEVICES": "0",
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "2",
        "CUDA_LAUNCH_BLOCKING": "1",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "NVIDIA_TF32_OVERRIDE": "0",
        "VLLM_ATTENTION_BACKEND": "FLASHINFER",
    }
    secret = {
        "AWS_SECRET_ACCESS_KEY": "x",
        "HF_TOKEN": "x",
        "WANDB_API_KEY": "x",
        "TORCHINDUCTOR_REDIS_PASSWORD": "x",
        "TRITON_AUTH_TOKEN": "x",
        "HOME": "/home/ada",
        "PYTHONPATH": "/home/ada/secret-project",
        "CUDA_API_KEY": "x",
        "VLLM_API_KEY": "x",
    }
    for name, value in {**kept, **secret}.items():
        monkeypatch.setenv(name, value)
    found = environment.variables()
    assert kept.items() <= found.items()
    assert not found.keys() & secret.keys()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"RANK": "1", "WORLD_SIZE": "4"}, (1, 4)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}, (2, 3)),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "8"}, (5, 8)),
        ({"RANK": "x", "WORLD_SIZE": "4"}, None),
        ({"RANK": "1"}, None),
    ],
)
def test_rank_and_world_are_read_from_the_environment(
    variables: dict[str, str], expected: tuple[int, int] | None
):
    assert rank_and_world(variables) == expected


class Driver:
    """libnvidia-ml of a card that knows no highest clock, and of a driver that does not tell the power."""

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: object) -> int:
        return 0

    def nvmlDeviceGetClockInfo(self, handle: object, kind: int, value: Any) -> int:
        value._obj.value = {1: 1980, 2: 3201}[kind]
        return 0

    def nvmlDeviceGetMaxClockInfo(self, handle: object, kind: int, value: Any) -> int:
        return 3  # not supported

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: object, value: Any) -> int:
        value._obj.value = 350_000
        return 0

    def nvmlDeviceGetApplicationsClock(self, handle: object, kind: int, value: Any) -> int:
        value._obj.value = {1: 1410}[kind]
        return 0

    def nvmlDeviceGetTemperature(self, handle: object, sensor: int = 0, value: Any = None) -> int:
        value._obj.value = 41
        return 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: object, value: Any) -> int:
        value._obj.value = 0x4 | 0x40
        return 0

    def nvmlSystemGetDriverVersion(self, text: Any, length: object) -> int:
        text.value = b"580.159.04"
        return 0


def test_a_clock_sample_says_none_for_what_the_device_does_not():
    card = nvml.Card("abc", Driver())
    sample = environment.sample(card, 3, "before recording")
    assert card.driver() == "580.159.04"
    assert (sample.device, sample.moment) == (3, "before recording")
    assert (sample.sm_clock_mhz, sample.memory_clock_mhz, sample.max_sm_clock_mhz) == (1980, 3201, None)
    assert (sample.power_w, sample.temperature_c) == (None, 41)
    assert (sample.power_limit_w, sample.application_clock_mhz) == (350, 1410)
    assert sample.throttle_reasons == ("power cap", "thermal (hardware)")
