"""Jobs of a demo run on the sandbox's instance of Dagster, and never on the one of the shell's ``$DAGSTER_HOME``."""

from pathlib import Path

import dagster as dg
import pytest

import sandbox.jobs
from sandbox.servers import ui


def test_a_demo_leaves_the_instance_of_its_operator_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @dg.job(name="nothing")
    def job() -> None:
        pass

    production = tmp_path / "production"
    production.mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(production))
    monkeypatch.setattr(sandbox.jobs, "build_defs", lambda config: dg.Definitions(jobs=[job]))
    data = tmp_path / "sandbox"
    done = sandbox.jobs.Jobs(str(data / "lifecycle.toml"), lambda line: None).run("nothing", "")
    assert list(production.iterdir()) == []
    with ui.instance(data) as its:
        assert its.get_run_by_id(done.run_id)
