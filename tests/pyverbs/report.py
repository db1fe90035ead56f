"""Runs rdma-core's own tests and writes one line for each: its name, the outcome, the reason.

    report.py FOLDER REPORT OPTION... MODULE...

FOLDER has the tests as the package rdma-core brings them; OPTION is one of theirs, such as --dev.
What a test prints is left out of the report, which the verbose form of unittest mixes with it.
"""

import os
import sys
import unittest

folder, report = sys.argv[1:3]
del sys.argv[1:3]
# run_tests.py finds args_parser in its own folder; tests import each other as tests.NAME.
sys.path[:0] = [folder, os.path.dirname(folder)]

import tests
from args_parser import parser


class Lines(unittest.TestResult):
    """Writes each outcome at once, so that a crash loses none of those before it."""

    def __init__(self, file):
        super().__init__()
        self.file = file

    def tell(self, test, outcome, reason=""):
        print(test.id(), outcome, " ".join(str(reason).split()), sep="\t", file=self.file, flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.tell(test, "passed")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.tell(test, "skipped", reason)

    def addError(self, test, error):
        super().addError(test, error)
        self.tell(test, "error", self.errors[-1][1])

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.tell(test, "failed", self.failures[-1][1])

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.tell(test, "failed", self._exc_info_to_string(error, test))


parser.parse_args()
with open(report, "w", encoding="utf-8") as file:
    unittest.defaultTestLoader.loadTestsFromNames(sys.argv[1:]).run(Lines(file))
