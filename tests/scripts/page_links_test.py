"""Every link of a page leads to a file of this repository, and to a heading that is there."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"docs/[\w/]+\.md")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def tracked(*patterns: str) -> list[Path]:
    """Files of git, those that are to be added too; without git, whatever is there."""
    command = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "--", *patterns]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return [path for each in patterns for path in ROOT.rglob(each)]
    return [path for name in done.stdout.splitlines() if (path := ROOT / name).is_file()]


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub writes them."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    heads = re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE)
    words = (re.sub(r"\]\([^)]*\)", "", head).lower() for head in heads)
    return {re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in words}


def broken(page: Path, target: str) -> str:
    """Why a link of that page leads nowhere, or ""."""
    if re.match(r"[a-z]+:", target):
        return ""
    name, _, anchor = target.partition("#")
    path = (page.resolve().parent / name).resolve() if name else page
    if not path.exists():
        return f"{target}: no such file"
    if anchor and path.suffix == ".md" and anchor not in anchors(path):
        return f"{target}: no such heading"
    return ""


def test_links_lead_somewhere():
    found = [
        f"{page.relative_to(ROOT)}: {why}"
        for page in tracked("*.md")
        for target in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8")))
        if (why := broken(page, target))
    ]
    assert not found, "\n".join(found)


def test_pages_that_code_names_are_there():
    sources = tracked("src/*", "bindings/*", "include/*", "python/*", "scripts/*", "examples/*")
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources
        if path.suffix in (".h", ".cc", ".cu", ".cuh", ".py", ".md", "")
        for name in set(NAMED.findall(path.read_text(encoding="utf-8", errors="replace")))
        if not (ROOT / name).is_file()
    ]
    assert not found, "\n".join(found)


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    page = tmp_path / "a.md"
    page.write_text("# A, B: `c`\n\n## Who's there\n\n```\n# no heading\n```\n")
    assert broken(page, "#a-b-c") == broken(page, "a.md#whos-there") == ""
    assert broken(page, "https://b.invalid/#x") == ""
    assert broken(page, "#no-heading").endswith("no such heading")
    assert broken(page, "b.md").endswith("no such file")
