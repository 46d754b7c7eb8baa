"""Turns CUDA C++ that went through the preprocessor into C++ for the emulation of a GPU (machine.h):

    g++ -E -include tests/emulated/cuda.h ... FILE.cu | python tests/emulated/translate.py > FILE.cpp

- kernel<<<grid, block, shared, stream>>>(...)    becomes a call of emulated::start({grid, ...}, kernel, ...)
- variables in shared memory                      become references into the block's memory
- asm("instruction" : outputs : inputs)           becomes a call of emulated::ptx::instruction (ptx.h)

Plain Python, no packages."""

import re
import sys

PTX = "::emulated::ptx::"


def closing(text: str, start: str, at: int) -> int:
    """The place behind the bracket that closes the one at `at`."""
    end = {"(": ")", "[": "]", "{": "}"}[start]
    depth, quoted = 0, ""
    while at < len(text):
        c = text[at]
        if quoted:
            if c == "\\":
                at += 1
            elif c == quoted:
                quoted = ""
        elif c == '"' or (c == "'" and not text[at - 1].isalnum()):
            quoted = c
        elif c == start:
            depth += 1
        elif c == end:
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    raise ValueError(f"{start} is not closed")


def split(text: str, separator: str) -> list[str]:
    """Parts between separators that stand in no brackets and no quotes."""
    parts, depth, quoted, last, at = [], 0, "", 0, 0
    while at < len(text):
        c = text[at]
        if quoted:
            if c == "\\":
                at += 1
            elif c == quoted:
                quoted = ""
        elif c == '"':
            quoted = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == separator and depth == 0:
            parts.append(text[last:at])
            last = at + 1
        at += 1
    return [*parts, text[last:]]


def string(text: str) -> str:
    joined = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', text))
    return joined.replace("\\n", "\n").replace("\\t", " ")


def operands(text: str) -> list[str]:
    found = []
    for part in split(text, ","):
        if part.strip():
            at = part.index("(")
            found.append(part[at + 1 : part.rindex(")")].strip())
    return found


def asm_call(text: str) -> str:
    parts = split(re.sub(r"(?m)^# \d+ .*$", "", text), ":")
    instruction = string(parts[0])
    given = [each for part in parts[1:3] for each in operands(part)]
    named = []
    for line in re.split(r"[;\n{}]+", re.sub(r"\{([^{};\n]*)\}", r"<\1>", instruction)):
        line = line.strip()
        if not line or line.startswith((".reg", "@", "bra")) or re.fullmatch(r"\w+:", line):
            continue
        named.append(line)
    if not named:
        return "((void)0)"
    names = []
    for line in named:
        name = re.split(r"\s", line, maxsplit=1)[0]
        special = re.search(r"%%(\w+)", line)
        names.append(re.sub(r"[^A-Za-z0-9]+", "_", name + (f".{special[1]}" if special else "")))
    if len(named) == 1:
        order = [int(n) for n in re.findall(r"(?<!%)%(\d+)", named[0])]
    else:
        order = list(range(len(given)))
    return f"{PTX}{'__'.join(names)}({', '.join(given[n] for n in order)})"


def statements(text: str) -> str:
    out, at = [], 0
    for found in re.finditer(r"\basm\s*(?:volatile)?\s*\(", text):
        if found.start() < at:
            continue
        end = closing(text, "(", found.end() - 1)
        out += [text[at : found.start()], asm_call(text[found.end() : end - 1])]
        at = end
    return "".join([*out, text[at:]])


def launches(text: str) -> str:
    """The kernel's name, with its template arguments, stands before <<<."""
    while (at := text.find("<<<")) >= 0:
        start = at
        while text[start - 1].isspace():
            start -= 1
        if text[start - 1] == ">":
            depth = 0
            while True:
                start -= 1
                if text[start] == ">":
                    depth += 1
                elif text[start] == "<":
                    depth -= 1
                    if depth == 0:
                        break
        while re.match(r"[\w:]", text[start - 1]):
            start -= 1
        end = text.index(">>>", at)
        last = closing(text, "(", text.index("(", end))
        arguments = text[text.index("(", end) + 1 : last - 1].strip()
        kernel = text[start:at].strip()
        if not arguments.startswith("{"):  # else they take the types of the kernel's parameters
            kernel = f"[=](auto... given) {{ {kernel}(given...); }}"
        configuration = f"{{{text[at + 3 : end]}}}"
        call = f"::emulated::start({configuration}, {kernel}{', ' if arguments else ''}{arguments})"
        text = f"{text[:start]}{call}{text[last:]}"
    return text


def shared_variables(text: str) -> str:
    def dynamic(found: re.Match) -> str:
        return f"{found[1]}* const {found[2]} = static_cast<{found[1]}*>(::emulated::dynamic_shared());"

    def fixed(found: re.Match) -> str:
        kind, out = found[1].strip(), []
        for declarator in split(found[2], ","):
            name, dimensions = re.fullmatch(r"\s*(\w+)\s*((?:\[.*\])*)\s*", declarator, re.S).groups()
            array = f"{name}_type"
            out.append(
                f"using {array} = {kind}{dimensions}; static char {name}_tag; {array}& {name} = "
                f"*static_cast<{array}*>(::emulated::static_shared(&{name}_tag, sizeof({array})));"
            )
        return " ".join(out)

    aligned = r"(?:__attribute__\s*\(\(aligned\(\d+\)\)\)\s*|alignas\(\w+\)\s*)?"
    text = re.sub(rf"extern\s+emulated_shared\s+{aligned}([\w:]+)\s+(\w+)\s*\[\]\s*;", dynamic, text)
    return re.sub(rf"\bemulated_shared\s+{aligned}([\w:]+)\s+([^;=]+);", fixed, text)


def main() -> None:
    text = sys.stdin.read()
    text = shared_variables(launches(statements(text)))
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
