#!/usr/bin/env python3
"""The checker of the pages (tools/pages.py): each of its rules finds what it is for, in a repository that the test makes, and the
pages of this repository have no findings.

Usage: pages_test.py [--bin DIR] [unittest's arguments]. With DIR, the folder of a build's programs, the flags on the pages are
compared with what the programs' --help says."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import pages  # noqa: E402

BIN: pathlib.Path | None = None

SHARD = '''
#include "server/store/shard.h"
namespace recon {
namespace {
// Shard::InAComment(int) { is none.
constexpr char kText[] = "Shard::InAText() {";
int Helper(int x) { return x + 1; }
struct Inner {
  explicit Inner(int count) : count_{count} {}
  int Count() const { return count_; }
  int count_;
};
}  // namespace
Shard::Shard(const Options& options) : pages_(options.pages), size_{0} {}
absl::StatusOr<std::vector<int>> Shard::Apply(const PushId& id, std::function<void(int)> done = {}) {
  if (id.worker == 0) return Shard::Refuse(id);
  lane_.Post([this] { CloseStep(1); });
  return Helper(2);
}
class Shard::Parts final : public Base {
 public:
  void Open() ABSL_LOCKS_EXCLUDED(mu_) { Helper(1); }
};
template <typename T>
T Shard::Cast(T value) { return value; }
void Shard::Parts::Close() {}
}  // namespace recon
'''


class Functions(unittest.TestCase):
    def test_definitions_are_found_with_their_classes(self) -> None:
        found = pages.functions(pages.without_comments(SHARD))
        self.assertEqual(found, {"Helper", "Inner::Inner", "Inner::Count", "Shard::Shard", "Shard::Apply",
                                 "Shard::Parts::Open", "Shard::Cast", "Shard::Parts::Close"})

    def test_methods_that_a_header_only_declares_count_there(self) -> None:
        header = "class ObjectStore {\n public:\n  virtual absl::Status PutIfAbsent(const std::string& name) = 0;\n};\n"
        self.assertEqual(pages.functions(header), {"ObjectStore::PutIfAbsent"})

    def test_python_and_protobuf_have_functions_too(self) -> None:
        python = "class Job:\n    def wait(self):\n        def inner():\n            pass\n\ndef main():\n    pass\n"
        self.assertEqual(pages.python_functions(python), {"Job::wait", "Job::inner", "main"})
        self.assertEqual(pages.functions_of(pathlib.Path("x.proto"), "service S { rpc Acquire(A) returns (B); }"), {"Acquire"})


class Repository(unittest.TestCase):
    """A repository with a source, a program's stand-in and one page, which each test breaks in one way."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="recon-pages-")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        subprocess.run(["git", "init", "-q", self.root], check=True)
        self.write("server/store/shard.cc", SHARD + 'Counter("recon_server_pushes_total"); getenv("RECON_BATCH");\n')
        for program in ("recon-server", "recon-worker", "reconctl", "recon-bench"):
            self.write(f"bin/{program}", '#!/bin/sh\ncase "$1" in\n'
                       'list) echo "  --dry-run  only say" ;;\n'
                       '*) printf "General:\\n  --help\\n  --batch N\\n\\nVerbs:\\n  list   all\\n" ;;\nesac\n')
            (self.root / "bin" / program).chmod(0o755)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def findings(self, text: str, name: str = "server/PAGE.md") -> list[str]:
        self.write(name, text)
        return pages.findings_of(self.root, self.root / "bin")[1]

    def test_a_page_that_is_right_has_no_findings(self) -> None:
        self.write("server/OTHER.md", "# Other page\n\n## What it says\n")
        self.assertEqual(self.findings("# Page\n\n`server/store/shard.cc: Shard::Apply` applies; see [other](OTHER.md#what-it-says) and\n"
                                       "`server/store/shard.cc`. `--batch 4` is RECON_BATCH; `recon_server_pushes_total` counts.\n"
                                       "```\ngit log --oneline\nreconctl list --dry-run  # --nothing\n```\n"), [])

    def test_a_function_that_is_gone_is_found(self) -> None:
        self.assertEqual(self.findings("1. `server/store/shard.cc: Shard::Contribute` keeps it.\n"),
                         ["server/PAGE.md:1: server/store/shard.cc has no function Shard::Contribute"])

    def test_a_call_a_comment_and_a_text_are_no_definitions(self) -> None:
        for name in ("Shard::Refuse", "Shard::InAComment", "Shard::InAText", "CloseStep", "Apply", "Other::Apply"):
            with self.subTest(name):
                self.assertIn(f"has no function {name}", str(self.findings(f"`server/store/shard.cc: {name}`\n")))

    def test_a_function_whose_name_is_on_the_next_line_is_checked(self) -> None:
        self.assertEqual(self.findings("So `server/store/shard.cc:\nShard::Gone` does it.\n"),
                         ["server/PAGE.md:1: server/store/shard.cc has no function Shard::Gone"])

    def test_a_file_that_is_gone_is_found(self) -> None:
        self.assertEqual(self.findings("`server/store/page.cc: Page::Clone` and `server/store/page.h`\n"),
                         ["server/PAGE.md:1: there is no server/store/page.cc", "server/PAGE.md:1: there is no server/store/page.h"])

    def test_links_and_headings_that_are_gone_are_found(self) -> None:
        self.write("server/OTHER.md", "# Other page\n")
        found = self.findings("[a](GONE.md) [b](OTHER.md#no-such-heading) [c](https://example.org/x)\n")
        self.assertEqual(found, ["server/PAGE.md:1: the link GONE.md leads nowhere",
                                 "server/PAGE.md:1: OTHER.md#no-such-heading: there is no such heading"])

    def test_metrics_and_variables_that_no_source_has_are_found(self) -> None:
        self.assertEqual(self.findings("`recon_server_pushes`, `recon_server_*`, `recon_client_*`, RECON_BATCHES\n"),
                         ["server/PAGE.md:1: no source has recon_server_pushes", "server/PAGE.md:1: no source has recon_client_*",
                          "server/PAGE.md:1: no source has RECON_BATCHES"])

    def test_flags_that_no_program_has_are_found(self) -> None:
        found = self.findings("`recon-server --batches 4`\n\n```\nreconctl list --dry\ncmake --build build\n```\n")
        self.assertEqual(found, ["server/PAGE.md:1: no program has --batches", "server/PAGE.md:4: no program has --dry"])

    def test_a_page_to_which_nothing_leads_is_found(self) -> None:
        self.write("README.md", "[a](server/A.md)\n")
        self.write("server/A.md", "[room](room)\n")
        self.write("server/room/README.md", "[a](../A.md)\n")
        self.assertEqual(self.findings("# Page\n"), ["server/PAGE.md: no link from the README leads to it"])

    def test_rows_that_do_not_fit_their_table_are_found(self) -> None:
        self.assertEqual(self.findings("| a | b |\n|---|---|\n| `x|y` | 1 |\n\n| a |\n|---|\n| `x\\|y` |\n"),
                         ["server/PAGE.md:3: 3 cells, the table has 2"])

    def test_pages_and_lines_that_are_too_long_are_found(self) -> None:
        self.assertEqual(self.findings("word " * 40 + "\n"), ["server/PAGE.md:1: 200 characters, allowed are 140"])
        self.assertEqual(self.findings("| " + "word " * 40 + "|\n"), [])
        (self.root / "server/PAGE.md").unlink()
        self.assertEqual(self.findings("x\n" * 151, "README.md"), ["README.md: 151 lines, allowed are 150: one subject a page"])


class ThisRepository(unittest.TestCase):
    def test_its_pages_have_no_findings(self) -> None:
        names, findings = pages.findings_of(ROOT, BIN)
        self.assertGreater(len(names), 10)
        self.assertEqual(findings, [])


if __name__ == "__main__":
    if "--bin" in sys.argv:
        at = sys.argv.index("--bin")
        BIN = pathlib.Path(sys.argv[at + 1]).resolve()
        del sys.argv[at:at + 2]
    unittest.main()
