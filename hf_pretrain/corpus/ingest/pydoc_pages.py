"""HTML pages of the standard library by pydoc, as JSON lines on standard output.

Run as a script in a process of its own, for pydoc imports what it documents; standard library only, nothing of this
package. pydoc shows the value of every module constant, and so the environment, paths and the machine's name; here
only numbers are shown.
"""

import html
import json
import os
import pkgutil
import pydoc
import re
import sys


# They open windows or browsers, print, take minutes, or hold tests, tables and vendored code.
SKIPPED = frozenset(
    (
        "antigravity this idlelib lib2to3 test turtledemo tkinter turtle ensurepip encodings pydoc_data "
        "__future__ __main__ distutils venv msilib nt winreg winsound msvcrt"
    ).split()
)
PACKAGES = (
    "asyncio collections concurrent ctypes curses dbm email email.mime html http importlib "
    "importlib.metadata importlib.resources json logging multiprocessing os sqlite3 unittest urllib "
    "wsgiref xml xml.dom xml.etree xml.sax xmlrpc zoneinfo tomllib"
).split()


class QuietDoc(pydoc.HTMLDoc):
    """pydoc's HTML without machine-dependent values."""

    def docother(self, object, name=None, mod=None, *ignored):  # noqa: A002 - pydoc's own signature
        """Name of a constant, with its value if it is a number."""
        shown = repr(object) if isinstance(object, (bool, int, float, type(None))) else type(object).__name__
        return (f"<strong>{html.escape(name)}</strong> = " if name else "") + html.escape(shown)

    def filelink(self, url, path):
        """The source file's name below the library folder."""
        return html.escape(re.split(r"[/\\]python[\d.]+[/\\]|[/\\]Lib[/\\]", path)[-1])


def module_names() -> list[str]:
    """Names to document: public top-level modules and those inside some packages."""
    names = {name for name in sys.stdlib_module_names if not name.startswith("_") and name not in SKIPPED}
    # Pure Python twins of C modules: near duplicates of the pages beside them, as any crawl has.
    names |= {"_pydecimal", "_pydatetime", "_pyio", "os.path"} & (set(sys.stdlib_module_names) | {"os.path"})
    for package in PACKAGES:
        module = _imported(package)
        for found in pkgutil.iter_modules(getattr(module, "__path__", [])):
            if not found.name.startswith("_") and "windows" not in found.name and "test" not in found.name:
                names.add(f"{package}.{found.name}")
    return sorted(names)


def topic_pages() -> list[tuple[str, str]]:
    """Title and text of the language-reference topics that `help()` shows."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        return []
    return sorted(topics.items())


def _imported(name: str):
    try:
        return pydoc.safeimport(name)
    except (pydoc.ErrorDuringImport, SystemExit):
        return None


def main() -> None:
    """Write one JSON object a page: kind, name, html (a whole page or, for topics, plain text)."""
    out, sys.stdout = sys.stdout, sys.stderr
    renderer = QuietDoc()
    # Paths reach signatures as default values.
    paths = {sys.executable, sys.prefix, sys.base_prefix, sys.exec_prefix, *filter(None, sys.path)}
    paths = sorted((html.escape(path) for path in paths if len(path) > 1), key=len, reverse=True)
    modules = [(name, _imported(name)) for name in module_names()]
    # A default argument may be the environment itself.
    os.environ.clear()
    for name, module in modules:
        if module is None:
            continue
        try:
            page = renderer.page(pydoc.describe(module), renderer.document(module, name))
        except (AttributeError, TypeError, ValueError, LookupError, OSError):
            continue  # pydoc trips over exotic objects of some releases
        for path in paths:
            page = page.replace(path, "")
        page = re.sub(r"(?:&nbsp;| )at(?:&nbsp;| )0x[0-9a-fA-F]+", "", page)
        out.write(json.dumps({"kind": "module", "name": name, "body": page}) + "\n")
    for name, text in topic_pages():
        out.write(json.dumps({"kind": "topic", "name": name, "body": text}) + "\n")


if __name__ == "__main__":
    main()
