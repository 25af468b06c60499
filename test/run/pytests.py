# Runs tests of Python's own library: pytests.py RESULTS MODULE... RESULTS gets a JSON object, outcomes by test. A test that fails is run
# again by itself, a few times: many depend on time, on a busy machine. Many also want to receive at once what was sent at once, which the debug
# switch cuts in pieces.
import faulthandler
import json
import os
import sys
import unittest

AGAIN = 30 if "GOSMC_RUN_SHAKE" in os.environ else 3
TIMEOUT = 420  # seconds for all; what hangs is printed, and the end

from test import support
from test.support import os_helper

# What takes gigabytes, minutes or hosts of the internet is left out. Of those that say that they take the network, socketserver's do not.
support.use_resources = ["network"] if sys.argv[2:] == ["test.test_socketserver"] else []
support.verbose = 0
results = {}


# What needs a hypervisor, and waits for it.
LEFT_OUT = ("VSOCK",)


def chosen(suite):
    """All of a suite's tests but those that are left out."""
    kept = unittest.TestSuite()
    for t in suite:
        if isinstance(t, unittest.TestSuite):
            kept.addTest(chosen(t))
        elif not any(word in t.id() for word in LEFT_OUT):
            kept.addTest(t)
    return kept


class Result(unittest.TestResult):
    def __init__(self, into):
        super().__init__()
        self.into = into

    def put(self, test, outcome):
        if self.into.get(test.id()) not in ("failed", "error"):
            self.into[test.id()] = outcome

    def addSuccess(self, test):
        self.put(test, "ok")

    def addError(self, test, err):
        super().addError(test, err)
        self.put(test, "failed")
        print(test.id(), self.errors[-1][1], file=sys.stderr, flush=True)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.put(test, "failed")
        print(test.id(), self.failures[-1][1], file=sys.stderr, flush=True)

    def addSkip(self, test, reason):
        self.put(test, "skipped")

    def addExpectedFailure(self, test, err):
        self.put(test, "ok")

    def addUnexpectedSuccess(self, test):
        self.put(test, "failed")

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.put(test, "failed")
            print(subtest.id(), err[1], file=sys.stderr, flush=True)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(TIMEOUT, exit=True)
    loader = unittest.TestLoader()
    with os_helper.temp_cwd():
        chosen(loader.loadTestsFromNames(sys.argv[2:])).run(Result(results))
        for name in [n for n, outcome in results.items() if outcome == "failed" and "(" not in n]:
            for _ in range(AGAIN):
                again = {}
                loader.loadTestsFromName(name).run(Result(again))
                if again.get(name) == "ok":
                    results[name] = "ok"
                    break
    with open(sys.argv[1], "w") as f:
        json.dump(results, f)
