#!/usr/bin/env python3
"""Makes the pictures of server/dashboard/README.md: a real job of four workers, one of them slow and one killed.

Usage: dashboard_pictures.py [--bin FOLDER] [--out FOLDER]. Takes a minute; needs Chromium (tools/setup.sh --tests)."""

from __future__ import annotations

import argparse
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "tools"))
import dashboard_test as dashboard  # noqa: E402

PICTURE_BYTES_MAX = 150_000
SECONDS = 45
TABLE_WIDTH = 1450  # All columns of the table of workers are in sight.


def picture(page: dashboard.browser.Browser, path: pathlib.Path) -> None:
    page.picture(path)
    size = path.stat().st_size
    print(f"{path}: {size} bytes")
    if size > PICTURE_BYTES_MAX:
        raise SystemExit(f"{path} has {size} bytes, more than {PICTURE_BYTES_MAX}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "server/dashboard")
    arguments = parser.parse_args()
    dashboard.BIN = arguments.bin.resolve()
    if dashboard.browser.find_browser() is None:
        print("dashboard_pictures: no Chromium: tools/setup.sh --tests installs it", file=sys.stderr)
        return 1
    with dashboard.browser.Browser(1180, 900) as page, dashboard.real_job() as job:
        job.start_server()
        for name in ("gpu0", "gpu1", "gpu2"):
            job.start_worker(name)
        job.start_worker("slow", "--slow-factor", 3)
        page.open(job.url)
        time.sleep(SECONDS / 2)
        job.kill("gpu1")
        time.sleep(SECONDS / 2)
        picture(page, arguments.out / "light.png")
        page.set_dark(True)
        page.resize(TABLE_WIDTH, 500)
        page.run("document.getElementById('kinds').value = 'members'")
        page.run(f"{dashboard.row_of('slow')}.click()")
        page.run("document.getElementById('workers-title').scrollIntoView()")
        time.sleep(2)
        hidden = page.run("(() => { const table = document.getElementById('workers'); return table.scrollWidth - table.clientWidth; })()")
        if hidden > 0:
            raise SystemExit(f"{hidden} pixels of the table of workers are not in the picture: TABLE_WIDTH is too small")
        picture(page, arguments.out / "dark.png")
        page.set_dark(False)
        page.run("document.getElementById('whole-job').click()")
        page.resize(390, 844, phone=True)
        page.run("scrollTo(0, 0)")
        time.sleep(2)
        picture(page, arguments.out / "phone.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
