"""Whose fault it is that a worker could not be started."""

from __future__ import annotations

import errno

import pytest

from sublet.errors import InvalidValue
from sublet.runtime.agent.worker import why_not_started
from sublet.runtime.group.failures import Fault, fault_of


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.ESTALE, errno.ENOSPC])
def test_a_machine_that_lacks_something_is_nobodys_fault(number):
    assert fault_of(why_not_started(OSError(number, "no"))) is Fault.INFRA


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOENT, "no"), OSError(errno.EACCES, "no"), InvalidValue("argv", (), "a command")]
)
def test_a_command_that_is_not_there_is_its_owners(error):
    assert fault_of(why_not_started(error)) is Fault.USER
