"""The Spark-free suite: its own modules (`tables`, `faults`, `lives`) are importable by name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
