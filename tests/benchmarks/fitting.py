"""Time of 200 bootstrap refits of 240 synthetic runs on one core, and how well the constants come back.

Prints one Markdown table. `--quick` takes 20 refits.
"""

import argparse
import math
import time

import numpy as np

from hf_pretrain.planning.chinchilla import EPOCH
from hf_pretrain.planning.fitting import LadderPoint, bootstrap_parametric, fit_parametric


def synthetic(noise: float, seed: int = 0) -> list[LadderPoint]:
    """240 runs on the surface of the law `epoch`: 12 sizes by 20 token counts, with noise in ln L."""
    random = np.random.default_rng(seed)
    return [
        LadderPoint(float(n), float(n * m), EPOCH.loss(float(n), float(n * m)) * math.exp(noise * random.normal()))
        for n in np.logspace(7.7, 10.2, 12)
        for m in np.geomspace(2, 200, 20)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="20 refits instead of 200")
    refits = 20 if parser.parse_args().quick else 200
    print("| runs | noise | refits | fit s | bootstrap s | alpha (80%) | beta (80%) | a (80%) |")
    print("|---|---|---|---|---|---|---|---|")
    for noise in (0.0, 0.005):
        points = synthetic(noise)
        begin = time.perf_counter()
        fit = fit_parametric(points)
        middle = time.perf_counter()
        bootstrap = bootstrap_parametric(points, fit, refits)
        end = time.perf_counter()
        cells = []
        for name in ("alpha", "beta", "a"):
            low, high = bootstrap.interval(name)
            cells.append(f"{getattr(fit.law, name):.4f} ({low:.4f} to {high:.4f})")
        seconds = f"{middle - begin:.2f} | {end - middle:.2f}"
        print(f"| {len(points)} | {noise:g} | {refits} | {seconds} | {' | '.join(cells)} |")
    print(f"\ntrue: alpha {EPOCH.alpha}, beta {EPOCH.beta}, a {EPOCH.a:.4f}; the bootstrap should stay below 20 s.")


if __name__ == "__main__":
    main()
