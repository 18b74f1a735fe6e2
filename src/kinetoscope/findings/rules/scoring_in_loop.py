"""Metrics, logs or pictures are made in every step.

What it finds
    Lines of the program in the loop of the steps that call a library which scores (torchmetrics,
    scikit-learn, torcheval, …), logs (Weights & Biases, TensorBoard, MLflow, tqdm, …) or draws (matplotlib,
    PIL, …), by samples of the thread that steps.

Why it is slow
    It is Python and many small kernels, one after another, in the thread that launches the model's work, for
    numbers that are not looked at in every step.

How it decides
    At least five samples of the steps, and 3 % of their time. That is promised as far as the device is idle
    in a step: device work that goes on meanwhile hides the host's time.

What to do
    Keep scores and targets (``preds.append(out.detach())``), or add up what is cheap on the device, and
    compute metrics once an epoch; log and draw every fiftieth step, or in another thread.

Source
    TorchMetrics documentation, "Metrics and devices", ``update`` and ``compute``; PyTorch Lightning,
    ``log_every_n_steps``.
"""

from kinetoscope.findings.program_lines import of_thread
from kinetoscope.findings.rule import *

FEWEST = 5  # samples
SCORES = (
    "torchmetrics", "sklearn", "torcheval", "evaluate", "seqeval", "sacrebleu", "nltk", "jiwer",
    "rouge_score", "pycocotools", "faster_coco_eval", "lpips", "pytorch_fid", "editdistance", "Levenshtein",
)  # fmt: skip
LOGS = (
    "wandb", "tensorboard", "tensorboardX", "mlflow", "comet_ml", "neptune", "clearml", "aim", "swanlab",
    "tqdm", "rich", "loguru", "logging",
)  # fmt: skip
DRAWS = ("matplotlib", "PIL", "imageio", "plotly", "seaborn", "skimage", "cv2")
KINDS = {
    SCORES: ("scores", "Keep predictions and targets of each step, detached, and score once an epoch."),
    LOGS: ("logs", "Log every fiftieth step, or from another thread."),
    DRAWS: ("draws or writes pictures", "Do it every so many steps, or in another thread."),
}


def find(view: RankView) -> Findings:
    for libraries, (does, advice) in KINDS.items():
        lines = [one for one in of_thread(view) if one.library in libraries and not one.loads]
        us, samples = sum(one.time_us for one in lines), sum(one.samples for one in lines)
        if samples < FEWEST or us < MEDIUM * view.own_step_us:
            continue
        idle = max(0.0, 1 - view.own_busy_us / view.own_step_us)
        saving = savings.unreplayed(
            view, us * idle, f"its share of the steps' samples, as far as the device is idle ({idle:.0%})"
        )
        first = lines[0]
        yield Finding(
            subject=does,
            title=f"The program {does} in every step: {numbers.time(us)} of it pass in {first.library}, "
            f"called by {first.function} ({first.line})",
            affected_us=us,
            saving=saving,
            evidence=evidence.of_steps(
                view, f"{samples} samples without the profiler, in {first.library} {first.calls}"
            ),
            advice=advice,
            source=first.line,
        )
