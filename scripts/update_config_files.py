"""Write the files that follow from the config keys: config/config.toml, config.schema.json and the documented table.

Run it as `.venv/bin/python scripts/update_config_files.py` after a change in src/gpu_oci_hook/config/keys.py or
descriptions.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from gpu_oci_hook.config import reference  # noqa: E402
from gpu_oci_hook.config.descriptions import KEY_DESCRIPTIONS  # noqa: E402
from gpu_oci_hook.config.keys import KEYS  # noqa: E402

BEGIN, END = "<!-- config keys: written by scripts/update_config_files.py -->\n", "<!-- config keys: end -->\n"


def main() -> None:
    missing = sorted({key for _, key, _, _ in KEYS} - KEY_DESCRIPTIONS.keys())
    if missing:
        sys.exit(f"no meaning in src/gpu_oci_hook/config/descriptions.py: {', '.join(missing)}")
    (ROOT / "config/config.toml").write_text(reference.render_default_config())
    (ROOT / "src/gpu_oci_hook/config/config.schema.json").write_text(reference.render_config_schema())
    page = ROOT / "docs/configuration.md"
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n{reference.render_config_table()}\n{END}{after}")
    print("wrote config/config.toml, src/gpu_oci_hook/config/config.schema.json, docs/configuration.md")


main()
