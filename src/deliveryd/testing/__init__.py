"""The conformance tests: what every adapter and customer directory must do, as tests to subclass.

Imports any room but the sandbox, and pytest (`pip install 'deliveryd[testing]'`); no room imports it.
A test of one built-in part doesn't belong here, and neither does what only this repository's tests use.
"""

import pytest

pytest.register_assert_rewrite("deliveryd.testing.adapters", "deliveryd.testing.directories")
