#!/usr/bin/env python3
"""The dashboard in a real browser: dashboard_test.py --bin FOLDER. Skipped, by name, where there is no Chromium."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from typing import Any, Callable, Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import browser  # noqa: E402

BIN = pathlib.Path()
HTML_NAME = "<img src=x onerror=alert(1)><b>bold</b>"


def eventually(what: str, condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"did not come: {what}")
        time.sleep(0.05)  # Between looks.


class Job:
    """A real server with a dashboard, and workers."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.listen = "127.0.0.1:0"
        self.dashboard = "127.0.0.1:0"
        self.server_flags: list[object] = []

    def start(self, name: str, *command: object) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log)

    def start_server(self) -> None:
        data = self.folder / "data"
        for file in ("ADDRESS", "DASHBOARD"):
            (data / file).unlink(missing_ok=True)
        self.start("server", BIN / "recon-server", "--data", data, "--listen", self.listen, "--dashboard", self.dashboard,
                   "--data-epochs", 1000, "--split-samples", 400, "--snapshot-interval", "2s", "--evict-after", "3s", *self.server_flags)

        def said(file: str) -> str:
            path = data / file
            return path.read_text().strip() if path.exists() else ""
        self.listen = eventually("the server listens", lambda: said("ADDRESS"))
        self.url = said("DASHBOARD")
        self.dashboard = self.url.removeprefix("http://").rstrip("/")

    def start_worker(self, name: str, *flags: object) -> None:
        self.start(name, BIN / "recon-worker", "--server", self.listen, "--name", name, "--data", "clusters:4000,500,16,4",
                   "--model", "mlp:16-24-4", "--device", "cpu", "--step-ms", 30, *flags)

    def kill(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes.pop(name).wait()

    def status(self) -> dict[str, Any]:
        done = subprocess.run([BIN / "reconctl", "status", "--server", self.listen, "--json"], capture_output=True,
                              text=True, check=True)
        return json.loads(done.stdout)

    def close(self) -> None:
        for name in list(self.processes):
            self.kill(name)


@contextlib.contextmanager
def real_job() -> Iterator[Job]:
    with tempfile.TemporaryDirectory(prefix="recon-dashboard-") as folder:
        job = Job(pathlib.Path(folder))
        try:
            yield job
        finally:
            job.close()


@contextlib.contextmanager
def simulated(workers: int) -> Iterator[tuple[str, Callable[[str], None]]]:
    """Yields the address, and what sends a command."""
    process = subprocess.Popen([BIN / "dashboard_server", str(workers)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin and process.stdout

    def tell(command: str) -> None:
        print(command, file=process.stdin, flush=True)
    try:
        yield process.stdout.readline().strip(), tell
    finally:
        process.kill()
        process.wait()


def last_of(page: browser.Browser, chart: str) -> dict[str, float]:
    return json.loads(page.run(f"document.getElementById('chart-{chart}').dataset.last ?? '{{}}'"))


def row_of(name: str) -> str:
    return f"[...document.querySelectorAll('#workers .row')].find(row => row.dataset.name === {json.dumps(name)})"


def gaps_of(chart: str) -> str:
    return f"Number(document.getElementById('chart-{chart}').dataset.gaps)"


def expect(condition: object, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def case_numbers_and_kills(page: browser.Browser) -> None:
    """The charts have the numbers of reconctl status --json; a kill shows within 2 s; the page outlives the server."""
    with real_job() as job:
        job.start_server()
        for name in ("w0", "w1"):
            job.start_worker(name)
        page.open(job.url)
        page.wait("document.querySelectorAll('#workers .row').length === 2")
        page.wait("[...document.querySelectorAll('#workers .row .utilization')].every(cell => /^cpu, [0-9]+ %, .+ of .+ GB$/.test(cell.textContent))")
        page.wait("Number(document.getElementById('chart-loss').dataset.points) >= 5")

        # A chart's newest point is a second old: it is between what the status said before and says after.
        before = job.status()
        started = time.time()
        page.wait(f"document.getElementById('chart-samples').dataset.last && Date.now() > {1000 * (started + 2.5)}")
        shown = {chart: last_of(page, chart) for chart in ("samples", "loss", "staleness", "workers")}
        after = job.status()
        rates = [status["samples_per_second"] for status in (before, after)]
        expect(min(rates) * 0.8 <= shown["samples"]["samples_per_second"] <= max(rates) * 1.25, f"{shown} but {rates}")
        expect(shown["workers"]["workers"] == 2, f"{shown}")
        staleness = [m["staleness_mean"] for s in (before, after) for m in s["members"]]
        expect(min(staleness) - 0.1 <= shown["staleness"]["staleness"] <= max(staleness) + 0.1, f"{shown} but {staleness}")

        # Of one moment, both are the same to the last digit.
        live, api = [json.loads(urllib.request.urlopen(job.url + path).read()) for path in ("api/live", "api/status")]
        for key in ("model", "parameters", "train_samples", "optimizer"):
            expect(live["job"][key] == api[key] == after[key], key)
        expect(sorted(api) == sorted(after), "api/status has the members of reconctl status --json")

        job.kill("w1")
        eventually("status says that w1 is suspect", lambda: any(
            m["name"] == "w1" and m["state"] != "MEMBER_ACTIVE" and m["state"] != "MEMBER_IDLE" for m in job.status()["members"]), 20)
        said = time.monotonic()
        page.wait(f"{row_of('w1')}.classList.contains('suspect') || {row_of('w1')}.classList.contains('gone')")
        took = time.monotonic() - said
        expect(took < 2, f"the page shows the kill {took:.2f} s after status has said it")
        page.wait("document.querySelector('#events li[data-kind=evicted]')?.textContent.includes('w1')")
        # Of who is gone there are no rates.
        page.wait(f"{row_of('w1')}.querySelector('.push_bytes_per_second').textContent === '–'")

        page.wait("document.querySelectorAll('#snapshots button').length > 0")
        page.run("document.querySelector('#snapshots button').click()")
        page.wait("document.getElementById('snapshots-note').textContent.includes('is whole')")

        # Nothing that is shown goes away while the server does.
        page.run("""(() => {
          window.emptied = 0;
          new MutationObserver(() => emptied += document.querySelector('#events li') ? 0 : 1)
            .observe(document.getElementById('events'), {childList: true});
        })()""")
        job.kill("server")
        page.wait("document.getElementById('alerts').textContent.includes('does not answer')")
        page.run("document.querySelector('#snapshots button').click()")
        page.wait("document.getElementById('snapshots-note').textContent.includes('is not verified')")
        manifests = sorted(path for path in (job.folder / "data/snapshots/manifests").iterdir() if path.suffix != ".tmp")
        damaged = bytearray(manifests[-2].read_bytes())
        damaged[len(damaged) // 2] ^= 1
        manifests[-2].write_bytes(damaged)
        started_before = page.run("document.querySelectorAll('#events li[data-kind=started]').length")
        job.start_server()
        page.wait("!document.getElementById('alerts').textContent.includes('does not answer')")
        page.wait("document.querySelector('#snapshots td.damage')?.textContent.includes('checksum')")
        # The history is the same one, and goes on.
        page.wait(f"document.querySelectorAll('#events li[data-kind=started]').length === {started_before} + 1")
        page.wait("document.querySelector('#events li[data-kind=evicted]')?.textContent.includes('w1')")
        # The points before and after it are not joined by a line.
        page.wait(f"{gaps_of('loss')} > 0 && {gaps_of('workers')} > 0")
        expect(page.run(gaps_of("accuracy")) == 0, "evaluations lie apart, and are joined")
        expect(page.run("emptied") == 0, "the timeline was emptied when the server was back")
        expect_quiet(page, but=("net::ERR_", "503"))


POINTS = "Number(document.getElementById('chart-loss').dataset.points)"


def case_chosen_workers(page: browser.Browser) -> None:
    """A worker without points has no charts of others'; late answers to earlier requests change nothing."""
    with simulated(1030) as (url, _):
        page.open(url)
        page.wait(f"{POINTS} >= 14")
        page.wait("document.querySelector('#chart-loss canvas') !== null")
        # There are series of 1,024 workers.
        page.run("(() => { const find = document.getElementById('find'); find.value = 'w1029'; find.dispatchEvent(new Event('input')); })()")
        page.run(f"{row_of('w1029')}.click()")
        page.wait("document.getElementById('scope').textContent === 'w1029'")
        page.wait(f"{POINTS} === 0")
        expect(page.run("document.querySelector('#chart-loss canvas') === null"), "a worker without points has another's chart")
        page.run("document.getElementById('whole-job').click()")
        page.wait(f"document.getElementById('scope').textContent === 'the job' && {POINTS} >= 14")

        # Its requests are answered late, in their order, while another worker is chosen and left again.
        page.run("""(() => {
          window.held = [];
          window.realFetch = window.fetch;
          window.fetch = async (path, options) => {
            if (String(path).startsWith('api/history')) await new Promise(go => held.push(go));
            return realFetch(path, options);
          };
        })()""")
        page.wait("held.length === 1")
        page.run(f"{row_of('w1029')}.click()")
        page.wait("held.length === 2")
        page.run("document.getElementById('whole-job').click()")
        page.wait("held.length === 3")
        page.run("""(() => {
          window.answered = 0;
          window.fetch = async (path, options) => {
            const response = await realFetch(path, options);
            if (String(path).startsWith('api/history')) ++answered;
            return response;
          };
          held.forEach(go => go());
        })()""")
        page.wait("answered >= 3")
        expect(page.run(POINTS) >= 14, f"of the job's points {page.run(POINTS)} are left")
        expect_quiet(page)


def case_another_clock(page: browser.Browser) -> None:
    """Ages go by the server's clock; so do the charts once that is set back."""
    script = "(() => { const now = Date.now.bind(Date); Date.now = () => now() + 7200000; })()"
    added = page.call("Page.addScriptToEvaluateOnNewDocument", source=script)["identifier"]
    try:
        with simulated(3) as (url, tell):
            page.open(url)
            age = "[...document.querySelectorAll('#facts div')].find(one => one.textContent.startsWith('last push'))?.textContent"
            page.wait(f"/ ago$/.test({age} ?? '')")
            expect(" min" not in page.run(age) and " h" not in page.run(age), f"{page.run(age)}: the clock of the browser")
            tell("clock 86400")
            page.wait(f"{POINTS} >= 3 && document.querySelector('#events li[data-kind=clock]') === null")
            page.wait("Number(document.getElementById('chart-loss').dataset.end) > Date.now()")
            tell("clock 0")
            page.wait("document.querySelector('#events li[data-kind=clock]') !== null")
            page.wait("Number(document.getElementById('chart-loss').dataset.end) < Date.now()")
            points = page.run(POINTS)
            page.wait(f"{POINTS} > {points} + 1")
            expect_quiet(page)
    finally:
        page.call("Page.removeScriptToEvaluateOnNewDocument", identifier=added)


def case_thousand_workers(page: browser.Browser) -> None:
    """1,000 workers scroll, by wheel and by keyboard, with few rows in the page; a name of HTML is text."""
    with simulated(1000) as (url, tell):
        page.open(url)
        page.wait("document.getElementById('workers-count').textContent === '(1000 there)'")
        rows = page.run("document.querySelectorAll('#workers .row').length")
        expect(0 < rows < 60, f"{rows} rows exist")
        page.run("document.getElementById('workers').scrollTop = 15000")
        page.wait(f"{row_of('w500')} !== undefined")
        page.run("document.getElementById('workers').focus()")
        page.press("End")
        page.wait(f"{row_of('w999')}?.getAttribute('aria-selected') === 'true'")
        page.press("Enter")
        page.wait("document.getElementById('scope').textContent === 'w999'")
        page.wait("Number(document.getElementById('chart-loss').dataset.points) > 0")
        page.wait("document.getElementById('chart-workers').hidden")
        # A frame takes long if all rows were made.
        took = page.run("""(async () => {
          const place = document.getElementById('workers'), begin = performance.now();
          for (let i = 0; i < 20; ++i) {
            place.scrollTop = 1400 * i;
            await new Promise(done => requestAnimationFrame(done));
          }
          return (performance.now() - begin) / 20;
        })()""")
        expect(took < 400, f"a frame of scrolling takes {took:.0f} ms")
        tell("name " + HTML_NAME)
        page.run("(() => { const find = document.getElementById('find'); find.value = 'onerror'; find.dispatchEvent(new Event('input')); })()")
        page.wait(f"{row_of(HTML_NAME)}?.querySelector('.name').textContent === {json.dumps(HTML_NAME)}")
        page.wait(f"[...document.querySelectorAll('#events li')].some(line => line.textContent.includes({json.dumps(HTML_NAME)}))")
        expect(page.run("document.querySelectorAll('#workers img, #events img, b').length") == 0, "a name became markup")
        tell("suspect w7")
        page.run("(() => { const find = document.getElementById('find'); find.value = 'suspect'; find.dispatchEvent(new Event('input')); })()")
        page.wait(f"{row_of('w7')}?.classList.contains('suspect')")
        tell("quiet")
        page.wait("document.getElementById('alerts').textContent.includes('busy')")
        expect_quiet(page)


def case_servers(page: browser.Browser) -> None:
    """Several servers have a list, which says of each that is away since when; one alone has none."""
    rows = "[...document.querySelectorAll('#servers tr')].map(row => [...row.children].slice(0, 4).map(cell => cell.textContent))"
    with simulated(3) as (url, tell):
        page.open(url)
        page.wait("Number(document.getElementById('chart-loss').dataset.points) > 1")
        expect(page.run("document.getElementById('servers-section').checkVisibility()") is False, "one server has a list")
        tell("server 1 SERVER_READY")
        tell("server 2 SERVER_READY")
        page.wait("document.getElementById('servers-count').textContent === '(3 of 3 there)'")
        expect(page.run("document.getElementById('servers-section').checkVisibility()"), "the list is hidden")
        tell("server 1 SERVER_STOPPED")
        tell("server 2 SERVER_AWAITED")
        page.wait("document.getElementById('servers-count').textContent === '(1 of 3 there)'")
        shown = page.run(rows)
        expect(shown[0][0] == "0, the head" and shown[0][1] == "there" and shown[0][3] == "3", f"{shown[0]}")
        expect(shown[1] == ["1", "stopped in good order for 42 s", "10.0.0.1:7070", "3"], f"{shown[1]}")
        expect(shown[2] == ["2", "away for 42 s", "10.0.0.2:7070", "3"], f"{shown[2]}")
        expect_quiet(page)


def case_gaps(page: browser.Browser) -> None:
    """Where nothing is known of some seconds, the charts are not drawn."""
    with simulated(3) as (url, tell):
        page.open(url)
        page.wait(f"{POINTS} >= 3")
        expect(page.run(gaps_of("loss")) == 0, "a gap where there was none")
        tell("quiet")
        begin = page.run("Number(document.getElementById('chart-loss').dataset.end)")
        page.wait(f"Date.now() > {begin} + 7000")
        tell("speak")
        page.wait(f"{gaps_of('loss')} === 1 && {gaps_of('workers')} === 1 && {gaps_of('bytes')} === 1")
        expect_quiet(page)


def case_table_at_1400_pixels(page: browser.Browser) -> None:
    """All columns of the table of workers are in sight, and no cell is cut."""
    with simulated(3) as (url, _):
        page.resize(1400, 900)
        page.open(url)
        page.wait("document.querySelectorAll('#workers .row').length === 3")
        # What a device with much to say has.
        cut = page.run("""(() => {
          for (const cell of document.querySelectorAll('#workers .utilization')) cell.textContent = 'cpu, 99 %, 25.1 GB of 25.3 GB';
          return [...document.querySelectorAll('#workers, #workers .row > :not(.shares)')].filter(one => one.scrollWidth > one.clientWidth)
            .map(one => one.textContent);
        })()""")
        expect(cut == [], f"cut: {cut}")
        page.resize(1280, 900)
        expect_quiet(page)


def case_phone_and_dark(page: browser.Browser) -> None:
    """Nothing is wider than a phone; light and dark differ; everything that can be used has a name."""
    with simulated(12) as (url, _):
        page.resize(390, 844, phone=True)
        page.open(url)
        page.wait("Number(document.getElementById('chart-loss').dataset.points) > 1")
        wide = page.run("document.documentElement.scrollWidth")
        expect(wide <= 390, f"the page is {wide} pixels wide")
        small = page.run("[...document.querySelectorAll('figure')].filter(f => f.offsetWidth < 250 || f.offsetWidth > 390).length")
        expect(small == 0, f"{small} charts do not fit a phone")
        nameless = page.run("""[...document.querySelectorAll('button, input, select, [tabindex], [role=img]')].filter(one =>
          one.checkVisibility() && !one.closest('label') && !one.textContent.trim() && !one.getAttribute('aria-label') && !one.getAttribute('aria-labelledby'))
          .map(one => one.outerHTML.slice(0, 80))""")
        expect(nameless == [], f"without a name: {nameless}")
        colors = []
        for dark in (False, True):
            page.set_dark(dark)
            colors.append(page.run("getComputedStyle(document.body).backgroundColor"))
        expect(colors[0] != colors[1], f"dark is as light: {colors}")
        page.set_dark(False)
        page.resize(1280, 900)
        expect_quiet(page)


def expect_quiet(page: browser.Browser, but: tuple[str, ...] = ()) -> None:
    """The console has complained of nothing, `but` what was to be expected."""
    page.open("about:blank")
    complaints = {line[:300] for line in page.complaints if not any(text in line for text in but)}
    page.complaints.clear()
    expect(not complaints, f"the console says {complaints}")


def main() -> int:
    global BIN
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("cases", nargs="*", help="some of them only, by name")
    arguments = parser.parse_args()
    BIN = arguments.bin.resolve()
    if browser.find_browser() is None:
        print("SKIP: dashboard_test: no Chromium (tools/setup.sh --tests installs Debian's chromium-headless-shell)")
        return 77
    failed = 0
    with browser.Browser() as page:
        for case in (case_numbers_and_kills, case_thousand_workers, case_chosen_workers, case_another_clock,
                     case_servers, case_gaps, case_table_at_1400_pixels, case_phone_and_dark):
            name = case.__name__.removeprefix("case_")
            if arguments.cases and name not in arguments.cases:
                continue
            began = time.monotonic()
            try:
                case(page)
                print(f"ok   {name}, {time.monotonic() - began:.1f} s", flush=True)
            except (AssertionError, TimeoutError, RuntimeError, OSError) as error:
                failed += 1
                print(f"FAIL {name}: {error}; the console says {sorted({line[:300] for line in page.complaints})}", flush=True)
                page.complaints.clear()
    return 1 if failed else 0


if __name__ == "__main__":
    os.environ.pop("http_proxy", None)
    sys.exit(main())
