"""The source files each step's bytes can come from: ``plan`` puts their digests into paths, a test holds the lists."""

CONVERTING_SOURCE = (
    "architecture.py",
    "build/archive.py",
    "build/convert.py",
    "build/tensors.py",
    "model/parameters.py",
    "model/rotation.py",
)
TRACED_SOURCE = ("architecture.py", "stages.py", "model", "build/trace.py")
BUNDLING_SOURCE = ("build/bundle.py", "manifest.py")
REFERENCE_SOURCE = (
    "parity/cases.py",
    "parity/expected.py",
    "parity/inputs.py",
    "parity/native.py",
    "parity/reference.py",
    "parity/rounding.py",
    "parity/specification.py",
    "parity/specification_files.py",
    "parity/specification_text.py",
    "parity/specification_vision.py",
    "parity/table.py",
    "parity/witness.py",
    "parity/witness_listening.py",
)
MEASURING_SOURCE = (
    "parity/cases.py",
    "parity/compare.py",
    "parity/expected.py",
    "parity/judge.py",
    "parity/measure.py",
    "parity/measure_text.py",
    "parity/reference.py",
    "parity/table.py",
    "preprocess",
    "runtime/bundle.py",
    "runtime/checks.py",
    "runtime/device.py",
    "runtime/host.py",
    "runtime/interrupt.py",
    "runtime/model.py",
)
REPORT_SOURCE = (
    "commands/report.py",
    "parity/differences.py",
    "parity/mutant.py",
    "parity/mutants.py",
    "parity/mutants_families.py",
    "parity/mutants_text.py",
    "parity/mutants_vision.py",
    "parity/mutate.py",
    "parity/report.py",
    "parity/report_curves.py",
    "parity/report_junit.py",
    "parity/report_page.html.jinja",
    "parity/report_page.py",
    "parity/report_pictures.py",
    "parity/report_tables.py",
)
