"""The table of ways to write a node: `FORMS`, by name."""

from __future__ import annotations

from tests.adapters.reader import forms_flow, forms_making, forms_open, forms_states, forms_texts
from tests.adapters.reader.forms_common import FORMS

__all__ = ["FORMS", "forms_flow", "forms_making", "forms_open", "forms_states", "forms_texts"]
