"""The settings file is checked as a whole, names its wrong keys, and is documented key by key."""

from pathlib import Path

import pytest

from pulsar_lifecycle.errors import ConfigError
from pulsar_lifecycle.setting_types import SecretRef
from pulsar_lifecycle.settings import CONFIG_VARIABLE, load_settings
from pulsar_lifecycle.words import WordKind

MINIMAL = """
cluster = "c"
[zookeeper]
hosts = "zk:2181"
[pulsar]
admin_url = "http://b:8080"
service_url = "pulsar://b:6650"
[lake]
path = "/lake"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "lifecycle.toml"
    path.write_text(text)
    return path


def test_the_smallest_file_has_safe_defaults(tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path, MINIMAL))
    assert settings.bookkeeper.shared_with is None
    assert settings.orphans.grace_period == 7 * 86_400
    assert settings.orphans.confirm_after == 86_400
    assert settings.apply.max_share == 0.05
    assert settings.deletion.deliver_after == 600


def test_the_variable_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONFIG_VARIABLE, str(write(tmp_path, MINIMAL)))
    assert load_settings().cluster == "c"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (("[lake]", "[lakes]"), "lakes"),
        (('path = "/lake"', 'path = "lake"'), "lake.path"),
        (('cluster = "c"', 'cluster = "a b"'), "cluster"),
        (("pulsar://b:6650", "http://b:8080"), "pulsar.service_url: .*pulsar://host:6650"),
        (("pulsar://b:6650", ""), "pulsar.service_url"),
        (('hosts = "zk:2181"', 'hosts = "zk:2181"\nslow_above = "soon"'), "zookeeper.slow_above"),
        (('hosts = "zk:2181"', 'hosts = "zk:2181"\npassword = "x"'), "zookeeper.password"),
    ],
)
def test_every_wrong_key_is_named(tmp_path: Path, change: tuple[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load_settings(write(tmp_path, MINIMAL.replace(*change)))


def test_a_file_that_is_no_text_is_a_wrong_setting(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL)
    path.write_bytes(path.read_bytes() + b'x = "\xff"')
    with pytest.raises(ConfigError, match="not UTF-8 text at byte"):
        load_settings(path)


def test_several_wrong_keys_are_named_at_once(tmp_path: Path) -> None:
    text = MINIMAL.replace('"/lake"', '"lake"').replace('cluster = "c"', 'cluster = ""')
    with pytest.raises(ConfigError, match=r"(?s)cluster.*lake\.path"):
        load_settings(write(tmp_path, text))


def test_a_missing_file_and_broken_toml_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONFIG_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match=CONFIG_VARIABLE):
        load_settings()
    with pytest.raises(ConfigError, match="nowhere"):
        load_settings(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match="TOML"):
        load_settings(write(tmp_path, "cluster ="))


@pytest.mark.parametrize(
    ("text", "seconds"), [('"90s"', 90), ('"15m"', 900), ('"24h"', 86_400), ('"500ms"', 0.5), ("2", 2)]
)
def test_durations(tmp_path: Path, text: str, seconds: float) -> None:
    settings = load_settings(write(tmp_path, MINIMAL + f"[orphans]\ngrace_period = {text}\n"))
    assert settings.orphans.grace_period == seconds


def test_a_secret_comes_from_a_file_or_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    monkeypatch.setenv("TOKEN", "from-env")
    assert SecretRef(file=str(tmp_path / "token")).resolve("pulsar.token") == "s3cret"
    assert SecretRef(env="TOKEN").resolve("pulsar.token") == "from-env"
    for wrong in (SecretRef(), SecretRef(file="a", env="b"), SecretRef(env="UNSET_HERE"), SecretRef(file="/nowhere")):
        with pytest.raises(ConfigError, match=r"pulsar\.token"):
            wrong.resolve("pulsar.token")


def test_a_secret_in_the_file_is_refused_and_not_shown(tmp_path: Path) -> None:
    section = '[object_store]\nendpoint = "http://s3"\nbuckets = ["b"]\naccess_key = "AKIA1"\nsecret_key = "AKIA2"\n'
    with pytest.raises(ConfigError, match=r"object_store\.access_key: .*name \{ file = ... \} or \{ env") as refused:
        load_settings(write(tmp_path, MINIMAL + section))
    assert "AKIA" not in str(refused.value)


@pytest.mark.parametrize("names", [("",), ("west", "west"), ("a/../b",), ("a@b",)])
def test_a_shared_root_has_a_name_of_its_own(tmp_path: Path, names: tuple[str, ...]) -> None:
    """An empty name would stand for our own root, a second one of the same name would never be read."""
    roots = ", ".join(f'{{name = "{name}", hosts = "zk:2181/other"}}' for name in names)
    with pytest.raises(ConfigError, match=r"bookkeeper\.shared_with"):
        load_settings(write(tmp_path, f"{MINIMAL}\n[bookkeeper]\nshared_with = [{roots}]\n"))


def test_shared_roots_with_different_names_are_fine(tmp_path: Path) -> None:
    roots = '{name = "west", hosts = "zk:2181/west"}, {name = "east-2", hosts = "zk:2181/east"}'
    settings = load_settings(write(tmp_path, f"{MINIMAL}\n[bookkeeper]\nshared_with = [{roots}]\n"))
    assert [root.name for root in settings.bookkeeper.shared_with or ()] == ["west", "east-2"]


@pytest.mark.parametrize(
    "hold", ["", "t/", "t/ns/", "persistent://t/ns", "non-persistent://t/ns/x", "t/ns/persistent/x", " t", "t//x"]
)
def test_a_legal_hold_that_can_hold_nothing_is_refused(tmp_path: Path, hold: str) -> None:
    with pytest.raises(ConfigError, match=r"orphans\.legal_holds"):
        load_settings(write(tmp_path, f'{MINIMAL}\n[orphans]\nlegal_holds = ["{hold}"]\n'))


def test_a_legal_hold_may_name_a_topic_as_pulsars_own_tools_do(tmp_path: Path) -> None:
    holds = ("t", "t/ns", "t/ns/x", "persistent://t/ns/y", "persistent://t/c/ns/y/z")
    text = ", ".join(f'"{hold}"' for hold in holds)
    settings = load_settings(write(tmp_path, f"{MINIMAL}\n[orphans]\nlegal_holds = [{text}]\n"))
    assert settings.orphans.holds(0) == {*holds, "persistent://t/ns/x"}


def test_loaded_topics_are_all_none_or_those_named(tmp_path: Path) -> None:
    given = {"true": True, "false": False, "[]": (), '["t", "t/ns"]': ("t", "t/ns")}
    for text, value in given.items():
        settings = load_settings(write(tmp_path, f"{MINIMAL}\n[trimming]\nloaded_topics = {text}\n"))
        assert settings.trimming.loaded_topics == value


@pytest.mark.parametrize("text", ['"t"', '["t/"]', '["non-persistent://t/ns/x"]', "[1]"])
def test_loaded_topics_that_name_nothing_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"trimming\.loaded_topics"):
        load_settings(write(tmp_path, f"{MINIMAL}\n[trimming]\nloaded_topics = {text}\n"))


DAY = 86_400_000
WORDS = """
[orphans]
legal_holds = ["t", { name = "t/ns/x", by = "mary", why = "case 12", until = 1970-01-02 }]
acknowledged_znodes = [{ path = "/schemas/t/ns/x", by = "mary", why = "truncated", until = 1970-01-02 }]
acknowledged_entries = [{ entry = "/schemas/t/ns/y 17 0", by = "mary", why = "lost disk", until = 1970-01-02 }]
max_shrinkage = 0.9
max_lost_bytes = 2199023255552
max_shrinkage_raised = { by = "mary", why = "tenant t is gone", until = 1970-01-02 }
[bookkeeper]
gone_namespaces = [{ name = "t/gone", by = "mary", why = "deleted in 2019" }]
not_sharing = [{ path = "/west", by = "mary", why = "own bookies", until = 1970-01-02 }]
"""


def test_a_word_holds_until_the_end_of_its_last_day(tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path, MINIMAL + WORDS))
    orphans = settings.orphans
    assert orphans.holds(2 * DAY - 1) == {"t", "t/ns/x", "persistent://t/ns/x"}
    assert orphans.holds(2 * DAY) == {"t"}
    assert (orphans.acknowledged(2 * DAY - 1), orphans.acknowledged(2 * DAY)) == ({"/schemas/t/ns/x"}, set())
    entry = "/schemas/t/ns/y 17 0"
    assert (orphans.acknowledged_entries_at(2 * DAY - 1), orphans.acknowledged_entries_at(2 * DAY)) == ({entry}, set())
    assert orphans.loss(2 * DAY - 1) == (0.9, 1_000, 1 << 41)
    assert orphans.loss(2 * DAY) == (0.2, 1_000, 1 << 40)
    assert (settings.bookkeeper.not_sharing_at(2 * DAY - 1), settings.bookkeeper.not_sharing_at(2 * DAY)) == (
        {"/west"},
        set(),
    )
    assert settings.bookkeeper.gone(1 << 40) == {"t/gone"}
    assert [(word.kind, word.subject) for word in settings.words()] == [
        (WordKind.LEGAL_HOLD, "t"),
        (WordKind.LEGAL_HOLD, "t/ns/x"),
        (WordKind.ACKNOWLEDGED_ZNODE, "/schemas/t/ns/x"),
        (WordKind.ACKNOWLEDGED_ENTRY, "/schemas/t/ns/y 17 0"),
        (WordKind.GONE_NAMESPACE, "t/gone"),
        (WordKind.NOT_SHARING, "/west"),
        (WordKind.RAISED_SHRINKAGE, "orphans.max_shrinkage"),
    ]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[orphans]\nacknowledged_znodes = ["/a"]', r"orphans\.acknowledged_znodes\.0: .*by and why"),
        ('[orphans]\nacknowledged_znodes = [{ path = "/a", by = "m" }]', r"orphans\.acknowledged_znodes\.0: .*why"),
        ('[orphans]\nacknowledged_entries = ["/a 1 0"]', r"orphans\.acknowledged_entries\.0: .*by and why"),
        (
            '[orphans]\nacknowledged_entries = [{ entry = "/a 1", by = "m", why = "w" }]',
            r"orphans\.acknowledged_entries\.0\.entry",
        ),
        ('[bookkeeper]\nnot_sharing = ["/west"]', r"bookkeeper\.not_sharing\.0: .*by and why"),
        ("[orphans]\nmax_lost_ledgers = 1001", "orphans: .*max_lost_ledgers"),
        ('[bookkeeper]\ngone_namespaces = ["t/ns"]', r"bookkeeper\.gone_namespaces\.0: .*by and why"),
        ("[orphans]\nmax_shrinkage = 0.3", "orphans: .*max_shrinkage_raised"),
        ('[orphans]\nmax_shrinkage = 0.3\nmax_shrinkage_raised = { by = "m" }', r"orphans\.max_shrinkage_raised: "),
        ('[orphans]\nlegal_holds = [{ name = "t", until = "soon" }]', r"orphans\.legal_holds\.0\.until"),
        ("[orphans]\nlegal_holds = [{ name = 't', until = 20261231 }]", r"orphans\.legal_holds\.0\.until"),
    ],
)
def test_a_word_that_weakens_a_safety_rule_says_who_and_why(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load_settings(write(tmp_path, f"{MINIMAL}\n{text}\n"))


@pytest.mark.parametrize(
    ("text", "named"), [('namespaces = ["acme/*"]', r"load\.namespaces"), ('timeout = "0s"', r"load\.timeout")]
)
def test_a_setting_that_can_have_no_effect_is_refused(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load_settings(write(tmp_path, f"{MINIMAL}\n[load]\n{text}\n"))


@pytest.mark.parametrize(
    ("minimum", "cap"), [("min_ledgers = 6", "max_ledgers = 5"), ("min_bytes = 6", "max_bytes = 5")]
)
def test_a_minimum_above_a_cap_of_apply_is_refused_by_both_names(tmp_path: Path, minimum: str, cap: str) -> None:
    """No plan could ever go, in silence; caps of apply do not hold for offloads."""
    least, most = minimum.partition(" ")[0], cap.partition(" ")[0]
    for kind in ("retention", "orphans", "offload"):
        written = write(tmp_path, f"{MINIMAL}\n[apply]\n{cap}\n[automation.{kind}]\n{minimum}\n")
        if kind == "offload":
            assert load_settings(written).apply.model_dump()[most] == 5
        else:
            with pytest.raises(ConfigError, match=rf"automation\.{kind}\.{least} \(6\) is above apply\.{most} \(5\)"):
                load_settings(written)
