#!/usr/bin/env python3
"""Checks what the pages (*.md) say about the code. Prints one line a finding; exits 1 if there is any.

Of each page, in plain Python and without a build:
  a link, or the name of a file, leads to something that is there;
  `path: Name` names a function that this file defines, such as `server/store/shard.cc: Shard::Apply`;
  recon_* names a metric (or a target of the build), RECON_* a variable that some source knows;
  the README has at most 150 lines, another page at most 170; a line of text has at most 140 characters;
  rows of a table have equally many cells; links from the README lead to every page.
With --bin DIR, the folder of a build's programs: also that each --flag on the pages is one of a program of recon, by its --help, or of a
script of this repository. With --functions FILE... it prints the functions it finds in them."""

import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = {".h", ".cc", ".cu", ".cuh", ".c", ".py", ".sh", ".proto", ".js", ".cmake", ".txt", ".toml", ".json", ".yaml", ".yml",
           ".sbatch", ".service"}
README_LINES_MAX = 150
PAGE_LINES_MAX = 170
LINE_MAX = 140

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FUNCTION = re.compile(r"`((?:[\w.@-]+/)+[\w.@-]+\.(?:cc|h|cu|py|proto)):\s+([A-Za-z_~][\w:~]*)`")
# A path from the root, in backticks; patterns (*) and members of a set ({a,b}) name no single file.
PATH = re.compile(r"`((?:common|deploy|proto|server|tests|tools|worker)/[\w./@-]*[\w])`")
METRIC = re.compile(r"\brecon_[a-z0-9_]+\*?")
VARIABLE = re.compile(r"\bRECON_[A-Z0-9_]+\b")
FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9]*(?:-[a-z0-9]+)*)(?![\w-])")
# Programs of others: what follows them on a line of a command are flags of theirs.
FOREIGN = re.compile(r"\b(cmake|ctest|cpack|git|kubectl|podman|sbatch|scontrol|scancel|srun|apt-get|pip|ssh|openssl|docker|aws|promtool|"
                     r"systemctl|torchrun|tensorboard|gcovr|clang-format|clang-tidy|env|ninja|perf)\b")


def pages(root):
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "*.md"], cwd=root,
                            capture_output=True, text=True, check=True).stdout.split()
    return [root / name for name in sorted(set(listed)) if (root / name).exists()]


def source_texts(root):
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=root, capture_output=True,
                            text=True, check=True).stdout.split("\n")
    return {name: (root / name).read_text(errors="replace") for name in listed
            if pathlib.PurePath(name).suffix in SOURCES and (root / name).is_file()}


def without_comments(text):
    """C++ with comments, literals and preprocessor lines blanked; lines stay where they are."""
    def blank(match):
        found = match.group(0)
        return re.sub(r"[^\n]", " ", found) if found[0] in "/#" else '""' + "\n" * found.count("\n")
    pattern = (r'R"(\w*)\([\s\S]*?\)\1"|//[^\n]*|/\*[\s\S]*?\*/|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])+\''
               r"|(?m:^[ \t]*#(?:\\\n|[^\n])*)")
    return re.sub(pattern, blank, text)


def closing_of(text, at):
    """Where the brace or parenthesis that opens at `at` is closed."""
    depth = 0
    for i in range(at, len(text)):
        if text[i] in "({":
            depth += 1
        elif text[i] in ")}":
            depth -= 1
            if depth == 0:
                return i
    return len(text)


def functions(text, scope="", declared=True):
    """Names of the functions that C++ text defines (and that its classes declare), with their classes: `Shard::Apply`."""
    found = set()
    start = i = 0
    while i < len(text):
        if text[i] == "(":
            i = closing_of(text, i)
        elif text[i] in ";}":
            if scope and declared and text[i] == ";":
                found.update(name_of(text[start:i], scope))
            start = i + 1
        elif text[i] == "{":
            head, end = text[start:i], closing_of(text, i)
            opens = re.search(r"\b(namespace|class|struct|union)\b(?:\s+alignas\([^)]*\)|\s+[A-Z_]+\([^)]*\))*\s*([\w:]*)[^()]*$", head)
            if opens or 'extern ""' in head:
                inner = scope
                if opens and opens.group(1) != "namespace" and opens.group(2):
                    inner = f"{scope}::{opens.group(2)}" if scope else opens.group(2)
                found |= functions(text[i + 1:end], inner, declared)
            else:
                found.update(name_of(head, scope))
            start, i = end + 1, end
        i += 1
    return found


def name_of(head, scope):
    """The function that a declaration's text up to its body or semicolon names, if it is one."""
    flat = re.sub(r"\b(?:ABSL_\w+|RECON_\w+|alignas|decltype|noexcept|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)", " ", head)
    match = re.search(r"((?:[A-Za-z_]\w*(?:<[^<>()]*>)?::)*~?(?:operator\s*[^\s(]+|[A-Za-z_]\w*))\s*\(", flat)
    if not match or "=" in re.sub(r"operator\s*[^\s(]+", "", flat[:match.start()]):
        return []
    name = re.sub(r"<[^<>]*>|\s+", "", match.group(1))
    if name in ("if", "for", "while", "switch", "return", "catch", "sizeof", "static_assert"):
        return []
    return [f"{scope}::{name}" if scope else name]


def functions_of(path, text):
    if path.suffix == ".py":
        return python_functions(text)
    if path.suffix == ".proto":
        return {match.group(1) for match in re.finditer(r"\brpc\s+(\w+)", text)}
    return functions(without_comments(text))


def python_functions(text):
    found, classes = set(), []
    for line in text.splitlines():
        match = re.match(r"(\s*)(?:async\s+)?(class|def)\s+(\w+)", line)
        if not match:
            continue
        indent = len(match.group(1))
        classes = [(depth, name) for depth, name in classes if depth < indent]
        name = "::".join([*(outer for _, outer in classes), match.group(3)])
        if match.group(2) == "class":
            classes.append((indent, match.group(3)))
        else:
            found.add(name)
    return found


def line_of(text, match):
    return text.count("\n", 0, match.start()) + 1


def check_functions(root, page, text, report):
    for match in FUNCTION.finditer(text):
        number, (file, name) = line_of(text, match), match.groups()
        path = root / file
        if not path.is_file():
            report(f"{page}:{number}: there is no {file}")
            continue
        known = functions_of(path, path.read_text(errors="replace"))
        # A method needs its class, so that another class' method of this name does not pass for it.
        if name not in known and not ("::" in name and any(other.endswith("::" + name) for other in known)):
            report(f"{page}:{number}: {file} has no function {name}")


def anchors(text):
    titles = re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?ms)^```.*?^```", "", text))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def check_links(root, page, text, report):
    for number, line in enumerate(text.splitlines(), 1):
        for target in LINK.findall(line):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            path = (root / page).parent / file if file else root / page
            if not path.exists():
                report(f"{page}:{number}: the link {target} leads nowhere")
            elif anchor and path.suffix == ".md" and anchor not in anchors(path.read_text()):
                report(f"{page}:{number}: {target}: there is no such heading")
        for name in PATH.findall(line):
            if not (root / name).exists():
                report(f"{page}:{number}: there is no {name}")


def check_names(page, text, sources, report):
    for number, line in enumerate(text.splitlines(), 1):
        for name in METRIC.findall(line) + VARIABLE.findall(line):
            known = any(word.startswith(name[:-1]) for word in sources) if name.endswith("*") else name in sources
            if not known:
                report(f"{page}:{number}: no source has {name}")


def check_lengths(page, text, report):
    lines = text.splitlines()
    most = README_LINES_MAX if str(page) == "README.md" else PAGE_LINES_MAX
    if len(lines) > most:
        report(f"{page}: {len(lines)} lines, allowed are {most}: one subject a page")
    fenced = False
    for number, line in enumerate(lines, 1):
        if line.startswith("```"):
            fenced = not fenced
        elif len(line) > LINE_MAX and not fenced and not line.startswith("|") and "](http" not in line:
            report(f"{page}:{number}: {len(line)} characters, allowed are {LINE_MAX}")


def check_tables(page, text, report):
    cells = fenced = 0
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= line.startswith("```")
        if fenced or not line.startswith("|"):
            cells = 0
            continue
        found = len(re.findall(r"(?<!\\)\|", line)) - 1
        cells = cells or found
        if found != cells:
            report(f"{page}:{number}: {found} cells, the table has {cells}")


def commands(text):
    """(line number, text) of all that a page has as code: fenced blocks line by line, and spans in backticks."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif fenced:
            yield number, line.split(" # ")[0] if not line.startswith("#") else ""
        else:
            for span in re.findall(r"`([^`]+)`", line):
                yield number, span


def help_flags(binary, verbs):
    """The flags of a program, and of its verbs, as their --help names them."""
    done = subprocess.run([str(binary), *verbs, "--help"], capture_output=True, text=True, timeout=60)
    found = set(FLAG.findall(done.stdout))
    listed = re.search(r"(?ms)^Verbs:\n(.*?)(?:\n\n|\Z)", done.stdout)
    for verb in re.findall(r"(?m)^  ([a-z][a-z-]*) ", listed.group(1)) if listed else []:
        found |= help_flags(binary, [*verbs, verb])
    return found


def known_flags(root, folder):
    found = set()
    for program in ("recon-server", "recon-worker", "reconctl", "recon-bench"):
        if not (folder / program).exists():
            raise SystemExit(f"pages: there is no {folder / program}; build it, or leave --bin out")
        found |= help_flags(folder / program, [])
    for path in [*root.glob("tools/**/*.py"), *root.glob("tools/**/*.sh"), *root.glob("tests/**/*.py"),
                 *root.glob("worker/python/**/*.py")]:
        found |= set(FLAG.findall(path.read_text(errors="replace")))
    return found


def check_flags(page, text, known, report):
    for number, command in commands(text):
        foreign = FOREIGN.search(command)
        for match in FLAG.finditer(command):
            if match.group(1) not in known and not (foreign and foreign.start() < match.start()):
                report(f"{page}:{number}: no program has --{match.group(1)}")


def check_reachable(root, names, report):
    """Every page can be found from the README."""
    found, queue = set(), [pathlib.Path("README.md")]
    while queue:
        page = queue.pop()
        if page in found or page not in names:
            continue
        found.add(page)
        for target in LINK.findall((root / page).read_text()):
            path = (root / page).parent / target.partition("#")[0]
            path = path / "README.md" if path.is_dir() else path
            if path.is_file():
                queue.append(path.resolve().relative_to(root.resolve()))
    for page in names:
        if found and page not in found:
            report(f"{page}: no link from the README leads to it")


def findings_of(root, folder=None):
    findings = []
    texts = source_texts(root)
    # What sources say; a flag's variable follows from its name where only that is written down.
    everything = "\n".join(texts.values())
    sources = {*METRIC.findall(everything), *VARIABLE.findall(everything)}
    sources |= {"RECON_" + flag.upper().replace("-", "_") for flag in re.findall(r'"(?:--)?([a-z][a-z0-9-]+)"', everything)}
    known = known_flags(root, folder) if folder else set()
    names = [page.relative_to(root) for page in pages(root)]
    for page in names:
        text = (root / page).read_text()
        check_functions(root, page, text, findings.append)
        check_links(root, page, text, findings.append)
        check_names(page, text, sources, findings.append)
        check_lengths(page, text, findings.append)
        check_tables(page, text, findings.append)
        if folder:
            check_flags(page, text, known, findings.append)
    check_reachable(root, names, findings.append)
    return names, findings


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, help="folder of a build's programs")
    parser.add_argument("--functions", nargs="+", type=pathlib.Path, metavar="FILE")
    options = parser.parse_args()
    if options.functions:
        for path in options.functions:
            for name in sorted(functions_of(path, path.read_text())):
                print(f"{path}: {name}")
        return 0
    names, findings = findings_of(ROOT, options.bin)
    for finding in findings:
        print(finding)
    print(f"pages: {len(names)} pages, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
