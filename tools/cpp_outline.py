"""Where the functions and classes of a C++ file are, and how large: by its braces, without a compiler. For code as
clang-format leaves it. Of what #if chooses between, the first alternative counts."""

import dataclasses
import re

# A comment, a string or a character. Raw strings are the first alternative: they may look like any other.
NOT_CODE = re.compile(r'R"([^(\s]*)\(.*?\)\1"|//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"'
                      r"|(?<![0-9A-Fa-f])'(?:[^'\\\n]|\\.)*'", re.DOTALL)
# Attributes and macros that stand in a declaration.
MARKS = re.compile(r"\[\[.*?\]\]|\b(?:ABSL|HWY|RECON)_\w+(?:\([^()]*\))?|\balignas\([^()]*\)", re.DOTALL)
ACCESS = re.compile(r"\s*(public|private|protected)\s*:(?!:)")
# What may stand between a function's parameters and its body.
AFTER_PARAMETERS = {"const", "noexcept", "override", "final", "mutable", "try"}


@dataclasses.dataclass
class Function:
    name: str
    line: int
    lines: int  # From its first line, with its result, to its closing brace.


@dataclasses.dataclass
class Class:
    name: str
    line: int
    public_methods: int = 0  # Not those that are deleted or defaulted.
    members: int = 0  # Not static ones.


@dataclasses.dataclass
class Scope:
    kind: str  # "namespace", "class", "function", "block", or "part": a brace within a declaration that goes on.
    head: str = ""
    line: int = 0
    begin: int = 0  # Of the statement that is being read in it.
    access: str = "private"
    about: Class = None


def code_of(text):
    """The text without comments, strings and preprocessor lines; lines stay where they are."""
    def blank(found):
        return ('""' if found.group()[0] in 'R"' else "") + "\n" * found.group().count("\n")

    lines, passed_over, goes_on = [], [], False
    for line in NOT_CODE.sub(blank, text).split("\n"):
        directive = None if goes_on else re.match(r"\s*#\s*(\w*)", line)
        is_code = directive is None and not goes_on
        if directive is not None:
            word = directive.group(1)
            if word in ("if", "ifdef", "ifndef"):
                passed_over.append(False)
            elif word in ("else", "elif") and passed_over:
                passed_over[-1] = True
            elif word == "endif" and passed_over:
                passed_over.pop()
        goes_on = not is_code and line.endswith("\\")
        lines.append(line if is_code and not any(passed_over) else "")
    return "\n".join(lines)


def without(text, opening, closing):
    """The text without what stands in such brackets: "f(int a)" becomes "f()"."""
    kept, depth = [], 0
    for sign in text:
        if sign == closing:
            depth = max(0, depth - 1)
        if depth == 0:
            kept.append(sign)
        if sign == opening:
            depth += 1
    return "".join(kept)


def plain(head):
    """A declaration without attributes, initial values in braces, parameters and template arguments."""
    head = MARKS.sub("", without(head, "{", "}"))
    head = re.sub(r"\boperator\s*(?:\(\)|[^\w\s(]+|(?:new|delete)\b(?:\s*\[\])?)", "operator_", head)
    head = without(without(head, "(", ")").replace("->", "  "), "<", ">")
    return re.sub(r"^\s*template\s*<>", "", head).strip()


def kind_of(head):
    """What begins with a brace behind `head`, at the level of namespaces and classes."""
    if head.count("(") > head.count(")"):
        return "part"  # A function within a value.
    head = plain(head)
    if re.search(r"\bnamespace\b", head) or re.fullmatch(r'extern\s*""', head):
        return "namespace"
    if "(" not in head and re.match(r"(?:typedef\s+)?(?:class|struct|union|enum)\b", head):
        return "class"
    if "(" not in head or "=" in head:
        return "part"
    # "Name(...) : base_{" begins the value of a member, "Name(...) : base_() {" and "name(...) const {" a body.
    last = re.search(r"(\w+)(?:<>)?$", head)
    in_list = re.search(r"\)\s*(?:noexcept\s*)?:(?!:)", head)
    return "part" if in_list and last and last.group(1) not in AFTER_PARAMETERS else "function"


def name_of(head):
    found = re.match(r"[^(]*?((?:\w+(?:<>)?::)*~?\w+)\s*\(", plain(head))
    return found.group(1) if found else "?"


def count_declaration(scope, head, has_body):
    head = plain(head)
    if not head or re.match(r"(?:using|typedef|friend|static_assert|enum|class|struct|union)\b", head):
        return
    if not has_body and not re.match(r"[^={]*\w\s*\(", head):
        scope.about.members += 0 if head.startswith("static") else 1
    elif scope.access == "public" and not re.search(r"=\s*(?:delete|default)$", head):
        scope.about.public_methods += 1


def outline(text):
    """The functions and classes of a file. A function within a function counts as part of it."""
    code = code_of(text)
    functions, classes = [], []
    scopes = [Scope("namespace")]
    for sign in re.finditer(r"[{};]", code):
        scope = scopes[-1]
        outer = scope.kind in ("namespace", "class")
        head = code[scope.begin:sign.start()]
        while scope.kind == "class" and (label := ACCESS.match(head)):
            scope.access, head = label.group(1), head[label.end():]
            scope.begin += label.end()
        if sign.group() == "{":
            first = scope.begin + len(head) - len(head.lstrip())
            inner = Scope(kind_of(head) if outer else "block", head, code.count("\n", 0, first) + 1, sign.end())
            if inner.kind == "function" and scope.kind == "class":
                count_declaration(scope, head, has_body=True)
            if inner.kind == "class":
                found = re.search(r"\b(class|struct|union|enum)\s+(?:class\s+)?([\w:]*)", plain(head))
                inner.access = "private" if found.group(1) == "class" else "public"
                inner.about = Class(found.group(2), inner.line)
                if found.group(1) != "enum":
                    classes.append(inner.about)
            scopes.append(inner)
        elif sign.group() == "}" and len(scopes) > 1:
            ended = scopes.pop()
            if ended.kind == "part":
                continue  # The declaration goes on.
            if ended.kind == "function":
                last = code.count("\n", 0, sign.start()) + 1
                functions.append(Function(name_of(ended.head), ended.line, last - ended.line + 1))
            scopes[-1].begin = sign.end()
        elif sign.group() == ";":
            if scope.kind == "class":
                count_declaration(scope, head, has_body=False)
            scope.begin = sign.end()
    return functions, classes
