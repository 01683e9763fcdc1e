#!/usr/bin/env python3
"""The rules of tools/tidy.py about sizes: for each a file that breaks it, and one that does not."""

import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))

import cpp_outline  # noqa: E402
import tidy  # noqa: E402


def findings(name, text):
    found = []
    tidy.check_sizes({pathlib.Path(name): text}, found.append)
    return found


def function_of(lines):
    return "int Sum(int a,\n        int b) {\n" + "  a += b;\n" * (lines - 4) + "  return a;\n}\n"


def class_of(methods, members):
    return ("class Book {\n public:\n  Book() = default;\n  Book(const Book&) = delete;\n"
            "  struct Page {\n    int number = 0;\n    int size() const { return number; }\n  };\n"
            + "".join(f"  int Get{i}(const std::function<int(int)>& f) const;\n" for i in range(methods))
            + " private:\n  void Close();\n  static int count_;\n"
            + "".join(f"  std::map<int, std::function<void(int)>> of_{i} ABSL_GUARDED_BY(mu_){{}};\n"
                      for i in range(members)) + "};\n")


class Sizes(unittest.TestCase):
    def test_a_file_of_more_lines(self):
        self.assertEqual(findings("server/a.cc", "// A line.\n" * 500), [])
        self.assertEqual(findings("server/a.cc", "// A line.\n" * 501),
                         ["server/a.cc:1: 501 file lines, at most 500 are allowed"])
        for name in ("tests/server/a_test.cc", "tests/python/a_test.py", "proto/a.proto"):
            self.assertEqual(findings(name, "\n" * 500), [])
            self.assertEqual(findings(name, "\n" * 501), [f"{name}:1: 501 file lines, at most 500 are allowed"])

    def test_a_function_of_more_lines(self):
        text = "namespace recon {\n" + function_of(70) + "}\n"
        self.assertEqual(findings("common/a.h", text), [])
        text = "namespace recon {\n\n" + function_of(71) + "}\n"
        self.assertEqual(findings("common/a.cu", text),
                         ["common/a.cu:3: Sum has 71 function lines, at most 70 are allowed"])
        self.assertEqual(findings("tests/common/a.cc", text), [])

    def test_a_class_of_more_methods_or_members(self):
        self.assertEqual(findings("server/book.h", class_of(25, 30)), [])
        self.assertEqual(findings("server/book.h", class_of(26, 30)),
                         ["server/book.h:1: Book has 26 public methods, at most 25 are allowed"])
        self.assertEqual(findings("server/book.h", class_of(25, 31)),
                         ["server/book.h:1: Book has 31 members, at most 30 are allowed"])
        self.assertEqual(findings("worker/book.h", class_of(26, 31)), [])

    def test_a_clock_or_a_sleep(self):
        text = ("void Wait() {\n  // absl::Now() is not called here.\n  absl::SleepFor(kNap);\n"
                "  std::this_thread::sleep_for(x);\n}\n")
        self.assertEqual(findings("common/base/clock.cc", text), [])
        self.assertEqual(findings("server/a.cc", text),
                         ["server/a.cc: 2 calls of absl::Now, SleepFor or sleep_for: use common/base's clock.h and sleep.h"])



class Outline(unittest.TestCase):
    def test_functions_are_found_whatever_stands_in_them(self):
        text = '''#if A
int First(int a) {
#else
int First(long a) {
#endif
  const char* text = "}";  // }
  return [] { return R"x(}})x"[0] == '}'; }();
}
Book::Book(int size) : size_{size}, of_([this] { return Of(); }), name_("b") {
  Open();
}
template <typename T, int N = sizeof(T)>
auto Twice(T value) -> decltype(value + value) {
  struct Local {
    int Get() { return 1; }
  };
  return value + value;
}
constexpr int kTable[] = {1, 2, 3};
bool operator==(const Book& a, const Book& b) {
  return a.size() == b.size();
}
'''
        functions, classes = cpp_outline.outline(text)
        self.assertEqual([(one.name, one.line, one.lines) for one in functions],
                         [("First", 2, 7), ("Book::Book", 9, 3), ("Twice", 12, 7), ("operator_", 20, 3)])
        self.assertEqual(classes, [])


if __name__ == "__main__":
    unittest.main()
