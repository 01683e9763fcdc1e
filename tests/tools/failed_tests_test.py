#!/usr/bin/env python3
"""tools/failed_tests.py on what ctest writes of tests that pass, fail, crash and take too long."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))

import failed_tests  # noqa: E402

TESTS = {
    "good": "echo FAILED: not me",
    "fails_early": "seq 100; echo 'sum_test.cc:12: FAILED:'; echo '  CHECK( 1 == 2 )'; seq 200 400; exit 1",
    "fails_at_the_end": "seq 100; echo no such file; exit 3",
    "says_nothing": "exit 1",
    "crashes": "echo begins; kill -SEGV $$",
    "hangs": "echo waits; sleep 60",
}


class FailedTests(unittest.TestCase):
    def test_each_that_failed_has_the_lines_that_tell_why(self):
        with tempfile.TemporaryDirectory() as directory:
            build = pathlib.Path(directory)
            file = "".join(f'add_test({name} "/bin/bash" "-c" [==[{script}]==])\n' for name, script in TESTS.items())
            (build / "CTestTestfile.cmake").write_text(file + 'set_tests_properties(hangs PROPERTIES TIMEOUT "1")\n')
            done = subprocess.run(["ctest", "-j2"], cwd=build, capture_output=True)
            self.assertNotEqual(done.returncode, 0)
            found = failed_tests.failed(build)
        self.assertEqual(sorted(found), sorted(set(TESTS) - {"good"}))
        self.assertIn("  CHECK( 1 == 2 )", found["fails_early"])
        self.assertIn("no such file", found["fails_at_the_end"])
        self.assertIn("begins", found["crashes"])
        self.assertIn("waits", found["hangs"])
        for lines in found.values():
            self.assertLessEqual(len(lines), failed_tests.LINES)


if __name__ == "__main__":
    unittest.main()
