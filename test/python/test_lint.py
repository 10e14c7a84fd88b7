"""Each check of tools/lint finds what it is for, in a small source tree made for that."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
TOOLS = ROOT / "tools"

TREE = {
    "meson.build": "subdir('low')\nsubdir('high')\nsubdir('plugin')\nsubdir('test/unit')\n",
    "low/meson.build": "static_library('low', 'a.cpp')\n",
    "low/a.h": "#pragma once\nnamespace torchwire { int a(); }\n",
    "low/a.cpp": '#include "low/a.h"\nnamespace torchwire { int a() { return 1; } }\n',
    "high/meson.build": "sources += files('b.cpp')\n",
    "high/b.h": '#pragma once\n#include "low/a.h"\nnamespace torchwire { int b(); }\n',
    "high/b.cpp": '#include "high/b.h"\nnamespace torchwire { int b() { return a(); } }\n',
    "plugin/meson.build": "",
    "test/unit/meson.build": "unit_test_tags = [\n  'cat',\n]\n",
    "test/unit/low/cat_test.cpp": 'TEST_CASE("purrs", "[cat]") {\n}\nTEST_CASE("by hand", "[.][slow]") {\n}\n',
    "plugin/pack/__init__.py": "from pack import one\n",
    "plugin/pack/one.py": "",
    "README.md": "# Top\n\nSee [the end](docs/page.md#the-end) and [this](#top).\n",
    "plugin/thread.cpp": 'namespace torchwire { const char* name = "torchwire_cat"; }\n',
    "plugin/pack/thread.py": "import threading\n\nthreading.Thread(name='torchwire-dog')\nNAME = 'torchwire cow'\n",
    "docs/threads.md": "| cat | `torchwire_cat` |\n| dog | `torchwire-dog` |\n| cow | `torchwire cow` (Python) |\n",
    "docs/page.md": "# Page\n\n## The end\n",
}


@pytest.fixture
def tree(tmp_path):
    for name, text in TREE.items():
        write(tmp_path / name, text)
    return tmp_path


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def complaints(tool, *arguments):
    """What a tool prints; nothing if it ends with 0."""
    done = subprocess.run([sys.executable, TOOLS / tool, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == (1 if done.stdout else 0), done.stderr
    return done.stdout


def of_layers(tree, *arguments):
    return complaints("lint_layers.py", "--root", tree, *arguments)


def test_a_tree_in_order_is_accepted(tree):
    assert of_layers(tree) == ""
    assert complaints("lint_links.py", "--root", tree) == ""
    assert complaints("lint_tags.py", "--root", tree) == ""
    assert complaints("lint_threads.py", "--root", tree) == ""


def test_a_thread_that_is_not_described_is_found_and_a_row_without_one(tree):
    rows = ("cat | `torchwire_cat`", "cow | `torchwire cow`", "pig | `torchwire_pig`")
    write(tree / "docs/threads.md", "".join(f"| {row} |\n" for row in rows))
    assert complaints("lint_threads.py", "--root", tree) == (
        "docs/threads.md has no row for the thread 'torchwire-dog'\n"
        "docs/threads.md has a row for the thread 'torchwire_pig', which nothing starts\n"
    )


def test_a_test_that_nothing_runs_is_found(tree):
    write(tree / "test/unit/low/dog_test.cpp", 'TEST_CASE("barks", "[dog]") {\n}\n')
    assert "dog_test.cpp: meson.build lists none of [dog]\n" in complaints("lint_tags.py", "--root", tree)


def test_an_include_of_a_later_folder_is_found(tree):
    write(tree / "low/c.cpp", '#include "high/b.h"\n')
    assert of_layers(tree) == "low/c.cpp: includes high/b.h, but low comes before high\n"


def test_a_file_outside_all_folders_is_found(tree):
    write(tree / "low2/c.h", "")
    assert of_layers(tree) == ""  # no folder of ours at all
    write(tree / "high/more/c.h", "")
    write(tree / "meson.build", "subdir('low')\nsubdir('high/more')\n")
    assert "high/b.cpp: is in no folder that meson.build names\n" in of_layers(tree)


def test_a_circle_of_files_is_found(tree):
    write(tree / "high/c.h", '#include "high/b.h"\n')
    write(tree / "high/b.cpp", '#include "high/c.h"\n')
    assert of_layers(tree) == "a circle of 2: high/b, high/c\n"


def test_a_circle_of_python_modules_is_found(tree):
    write(tree / "plugin/pack/one.py", "import pack\n")
    assert of_layers(tree) == "a circle of 2: pack, pack.one\n"


def test_what_a_module_imports_beside_its_package_is_no_circle(tree):
    write(tree / "plugin/pack/one.py", "from pack import _built, two\n")
    write(tree / "plugin/pack/two.py", "")
    assert of_layers(tree) == ""


def test_a_symbol_of_a_later_folder_is_found(tree):
    write(tree / "low/d.cpp", "namespace torchwire { int b(); int d() { return b(); } }\n")
    build = tree / "build"
    for source, target in {
        "low/a.cpp": "low/liblow.a.p/a.cpp.o",
        "low/d.cpp": "low/liblow.a.p/d.cpp.o",
        "high/b.cpp": "plugin/_C.so.p/.._high_b.cpp.o",
    }.items():
        (build / target).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["g++", "-c", source, "-I.", "-o", build / target], cwd=tree, check=True)
    assert of_layers(tree, "--build", build) == "low: d.cpp.o needs _ZN9torchwire1bEv of high, which comes after it\n"


def test_a_build_without_objects_is_not_taken_for_one_in_order(tree):
    assert "is it a finished build?" in of_layers(tree, "--build", tree)


@pytest.mark.parametrize(
    "link, sentence",
    [
        ("gone.md", "README.md: the link to gone.md leads nowhere\n"),
        ("docs/page.md#gone", "README.md: docs/page.md#gone names a heading that is not there\n"),
    ],
)
def test_a_link_that_leads_nowhere_is_found(tree, link, sentence):
    write(tree / "README.md", f"[here]({link})\n\n```\n[not this](one.md)\n```\nnor `[that](one.md)`\n")
    assert complaints("lint_links.py", "--root", tree) == sentence


needs_clang = pytest.mark.skipif(not shutil.which("clang++"), reason="there is no clang++, which tools/lint installs")


@needs_clang
def test_a_field_that_is_read_without_its_lock_is_found(tree):
    os.symlink(ROOT / "backend", tree / "backend")
    counter = """#include "backend/base/annotations.h"
namespace torchwire {
class Counter {
 public:
  int count() { %s return count_; }
 private:
  Mutex mutex_{LockRank::loop};
  int count_ GUARDED_BY(mutex_) = 0;
};
int read() { return Counter().count(); }
}
"""
    arguments = ("lint_locks.py", "--root", tree, "--include", tree)
    write(tree / "low/a.cpp", counter % "MutexLock lock(mutex_);")
    assert complaints(*arguments) == ""
    write(tree / "low/a.cpp", counter % "")
    assert "reading variable 'count_' requires holding mutex 'mutex_'" in complaints(*arguments)


def fails_with(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False).returncode != 0


def test_a_file_that_is_not_formatted_is_found(tmp_path):
    shutil.copy(ROOT / ".clang-format", tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    scripts = pathlib.Path(sys.executable).parent
    cpp, py = tmp_path / "a.cpp", tmp_path / "a.py"
    clang_format = (scripts / "clang-format", "--dry-run", "--Werror", cpp)
    ruff_format, ruff_check = (scripts / "ruff", "format", "--check", py), (scripts / "ruff", "check", py)
    write(cpp, "int a() {\n  return 1;\n}\n")
    write(py, "import os\n\nprint(os.name)\n")
    assert not fails_with(*clang_format) and not fails_with(*ruff_format) and not fails_with(*ruff_check)
    write(cpp, "int a( ) { return 1; }\n")
    write(py, "import os\n")
    assert fails_with(*clang_format) and fails_with(*ruff_check)
    write(py, "a=1\n")
    assert fails_with(*ruff_format)
