"""Ask a server (serve.py) for tokens, and write what a client sees as `vllm bench serve --save-result` does.

    python examples/ask.py --port 8000 --requests 200 --at-once 8 --result client.json

A token's time is that from a request's first token to its last, divided by the tokens between.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
import urllib.request
from pathlib import Path

WORDS = 8000


def ask(port: int, number: int, prompt: int, tokens: int) -> tuple[float, float, float, int]:
    """When it was asked (Unix time), seconds until the first token and until the last one, and the number of
    tokens."""
    words = [(number * 7 + n) % WORDS for n in range(prompt)]
    body = json.dumps({"prompt": words, "tokens": tokens}).encode()
    asked, began = time.time(), time.perf_counter()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", body) as answer:
        answer.readline()
        first = time.perf_counter() - began
        made = len(json.loads(answer.readline()))
    return asked, first, time.perf_counter() - began, made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    defaults = {"port": 8000, "requests": 24, "at-once": 8, "prompt": 32, "tokens": 48}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--result", type=Path, help="where to write it (default: print it)")
    parser.add_argument("--until-stdin-ends", action="store_true", help="begin no request later")
    arguments = parser.parse_args()
    numbers, seen = iter(range(arguments.requests)), []
    over = threading.Event()
    if arguments.until_stdin_ends:
        threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()

    def client() -> None:
        for number in numbers:
            if over.is_set():
                return
            seen.append(ask(arguments.port, number, arguments.prompt, arguments.tokens))

    began = time.perf_counter()
    threads = [threading.Thread(target=client) for _ in range(arguments.at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    asked, first, last, tokens = zip(*sorted(seen), strict=True)
    made = sum(tokens)
    each = [1e3 * (b - a) / max(1, n - 1) for a, b, n in zip(first, last, tokens, strict=True)]
    said = {
        "completed": len(seen),
        "duration": took,
        "max_concurrency": arguments.at_once,
        "total_output_tokens": made,
        "output_throughput": made / took,
        "mean_ttft_ms": 1e3 * statistics.mean(first),
        "mean_tpot_ms": statistics.mean(each),
        "median_tpot_ms": statistics.median(each),
        "max_e2el_ms": 1e3 * max(last),
        "start_times": asked,
        "ttfts": first,
        "e2els": last,
        "output_lens": tokens,
    }
    text = json.dumps(said)
    if arguments.result is None:
        print(text)
    else:
        arguments.result.write_text(text + "\n")


if __name__ == "__main__":
    main()
