"""The mechanical part of the writing rules: words never used, and openings that a docstring never has."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

NEVER = {
    "whoever, whomever": "name the reader, handler or process",
    "nobody, somebody, anybody, everybody": "name the subject: no consumer, another operator, every client",
    "a person, persons": "operator, or you",
    "hear, hears, heard": "receive, read",
    "believe, believes, believed": "use, trust",
    "told, tell, tells": "report, return, pass, say which",
    "mend, mends, mended": "repair, fix",
    "anew": "again, or from the start",
    "becomes of, became of": "happens to",
    "let go, lets go, let go of": "release, unblock, close",
    "in hand": "unacked, in flight",
    "cannot be meant": "invalid",
    "comes again, come again, came again": "redelivered",
    "goes on, go on, went on, going on": "continue, resume",
    "so many": "a number, or how many",
    "so often": "a number, or how often",
    "by so much": "a number",
    "tried alone": "in quarantine",
    "under way": "in flight, running",
    "for ever": "forever, or until when",
    "belongs into, belong into": "belongs in",
    "likewise": "also",
    "thereby, thereof, therein, whereby, thereupon": "a plain sentence",
    "upon": "on",
}
"""Words that WRITING forbids or that stand for a better one, and what to write."""
OPENINGS = ("What", "Whether", "Who", "Whose", "Whoever", "How", "Where", "When", "That", "Why")
"""First words of a docstring that name no noun and give no order."""
WORDS = {
    re.compile(rf"\b(?:{'|'.join(re.escape(word.strip()) for word in words.split(','))})\b", re.IGNORECASE): instead
    for words, instead in NEVER.items()
}
OPENING = re.compile(rf"(?:{'|'.join(OPENINGS)})\b")
FORMATTED = tokenize.FSTRING_MIDDLE if hasattr(tokenize, "FSTRING_MIDDLE") else tokenize.STRING
PROSE = (tokenize.STRING, tokenize.COMMENT, FORMATTED)
PREFIX = re.compile(r"[rR]?[fF][rR]?['\"]")
EXPRESSION = re.compile(r"\{[^{}]*\}")
FENCED = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Finding:
    """One place that breaks a rule."""

    line: int
    found: str
    instead: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.found!r}; write: {self.instead}"


def in_python(text: str, *, literals: bool = True) -> list[Finding]:
    """The findings in the strings, docstrings and comments of a module; its identifiers are not read.

    Without literals only docstrings and comments are read.
    """
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr)]
    docstrings = {(node.lineno, node.col_offset) for node in nodes if isinstance(node.value, ast.Constant)}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    read = (token for token in tokens if token.type in PROSE)
    read = (token for token in read if literals or token.type == tokenize.COMMENT or token.start in docstrings)
    prose = (_words(_spoken(token), token.start[0]) for token in read)
    return sorted([finding for findings in prose for finding in findings] + list(_openings(text)))


def _spoken(token: tokenize.TokenInfo) -> str:
    """The text of a token; before Python 3.12 a formatted string is one token, with its expressions."""
    formatted = token.type == tokenize.STRING and PREFIX.match(token.string)
    return EXPRESSION.sub("{}", token.string) if formatted else token.string


def in_markup(text: str) -> list[Finding]:
    """The findings in a page or template; code in it is not read."""
    return sorted(_words(FENCED.sub(lambda code: "\n" * code[0].count("\n"), text), 1))


@cache
def in_file(path: Path) -> list[Finding]:
    """The findings of a file, read as its name says."""
    text = path.read_text()
    return in_python(text) if path.suffix == ".py" else in_markup(text)


def _words(text: str, first: int) -> Iterator[Finding]:
    for pattern, instead in WORDS.items():
        for match in pattern.finditer(text):
            yield Finding(line=first + text.count("\n", 0, match.start()), found=match[0], instead=instead)


def _openings(source: str) -> Iterator[Finding]:
    """Docstrings of modules, classes and functions, and strings that stand under a name as its explanation."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str) and (match := OPENING.match(text)):
                yield Finding(line=node.lineno, found=match[0], instead="the noun, or an imperative: Return …")
