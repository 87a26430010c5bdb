"""Which tests of structured output are collected."""

import os

# The official suite of JSON Schema is no part of this repository.
collect_ignore = [] if os.environ.get("JSON_SCHEMA_TEST_SUITE") else ["test_json_schema_suite.py"]
