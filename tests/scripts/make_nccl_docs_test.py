"""docs/nccl.md and docs/measured/nccl.md say what the records say."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(ROOT / "scripts"))
    import make_nccl_docs

    yield make_nccl_docs
    sys.path.remove(str(ROOT / "scripts"))


@pytest.mark.parametrize("name", ["docs/nccl.md", "docs/measured/nccl.md"])
def test_the_page_is_current(script, name):
    text = (ROOT / name).read_text()
    assert script.page(ROOT / name, text) == text, "run scripts/make_nccl_docs.py"


def test_a_page_without_marks_is_refused(script):
    with pytest.raises(SystemExit, match=r"docs/nccl\.md: the marks of 'gain' are not there"):
        script.page(ROOT / "docs/nccl.md", "# In NCCL's place\n")


@pytest.mark.parametrize(
    ("outcomes", "kind"),
    [
        ([{"braid": "not run"}], "not come to"),
        ([{"braid": "hung", "nccl": "passed"}, {"braid": "passed"}], "good"),
        ([{"braid": "skipped"}, {"braid": "not run"}], "good"),
        ([{"braid": "passed"}, {"braid": "failed", "nccl": "crashed"}], "bad with NCCL too"),
        ([{"braid": "hung", "nccl": "passed"}], "open"),
        ([{"braid": "failed", "nccl": "not run"}], "open"),
        ([{"braid": "failed"}], "open"),
    ],
)
def test_a_test_is_what_its_last_run_was(script, outcomes, kind):
    assert script.kind_of([("a.json", one) for one in outcomes]) == kind


def test_runs_are_in_the_order_of_their_dates(script):
    first, later = (
        {"date": date, "tests": [{"test": "t", "outcomes": {"braid": word}}]}
        for date, word in (("2026-01-01", "hung"), ("2026-01-02", "passed"))
    )
    runs = script.torch_runs([("later.json", later), ("first.json", first)])
    assert [one["braid"] for _, one in runs["t"]] == ["hung", "passed"]


def test_what_is_left_to_nccl_is_what_the_drop_in_says():
    """The numbers stand in bindings/nccl/calls.cc."""
    text = (ROOT / "bindings/nccl/calls.cc").read_text()
    for line in (
        "num_ranks > 2 && bytes > 16 * kMiB",
        "(num_ranks > 4 && bytes > 32 * kMiB) || (num_ranks > 2 && bytes > 256 * kMiB)",
        "num_ranks > 4 && bytes > 64 * kMiB",
    ):
        assert line in text, "is_left_to_nccl of scripts/make_nccl_docs.py says otherwise"


def test_a_record_whose_commit_is_in_doubt_says_so(script, tmp_path, monkeypatch):
    (tmp_path / "doubt.json").write_text('{"commit": "2ce4cc4", "command": "x --commit c510ce7"}')
    with monkeypatch.context() as patched:
        patched.setattr(sys.modules["record_notes"], "RECORDS", tmp_path)
        words = script.commit_words("doubt.json")
    assert words.startswith("commit 2ce4cc4 by the record, c510ce7 by its command line")
    assert script.commit_words("nccl_tests_check_2.json").endswith("changes that no commit holds")
    assert script.commit_words("flexlink_2.json") == "commit 9e33c62"
