"""Run what the package has to be ready for, and write down which specializations that took: ``manifest.json``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "src"))

import numpy as np
from blurred import mean, shifted  # type: ignore[import-not-found]

import cuplate


def main() -> None:
    image = np.arange(12 * 9, dtype=np.float32).reshape(12, 9)
    with cuplate.record(Path(__file__).parent / "manifest.json") as recording:
        for radius in (1, 2):
            mean(image, radius=radius)
        shifted(image, 0.5)
        shifted(image.astype(np.float64), 0.5)
    print(recording)


if __name__ == "__main__":
    main()
