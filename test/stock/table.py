"""A table: a CSV file with a header and # comments, kept next to this file or written anywhere."""

import csv
from pathlib import Path

HERE = Path(__file__).resolve().parent


def read(name):
    """The rows of a table of this folder, as dictionaries."""
    with open(HERE / name, newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def write(path, header, rows):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
