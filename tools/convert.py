"""Convert records of the code before 2026-11-27 into results/published/<campaign>/<kind>.parquet.

    tools/convert.py OLD/published            all campaigns below a folder, from nothing
    tools/convert.py OLD/published/library    one campaign, merged with what is published
    tools/convert.py --check OLD/published    compare every value of the old files with the new

It goes when the last run of that code is converted.
"""

import argparse
import atexit
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from relation import plan, records
from relation.jobs import Bench, Check, Data, Length, Recall, Run, Side, hash_of
from relation.variants import MIXERS, ModelConfig

# Old campaign -> new campaign and variation; None: the variation is the reading's name.
CAMPAIGNS = {
    "books": ("books", "nearest"),
    "books-scaled": ("books", "gpt2"),
    "books-residual": ("books", "residual"),
    "books-epsilon": ("books", "eps"),
    "books-100m": ("books", "nearest"),
    "library": ("books", "nearest"),
    "readings": ("readings", None),
    "anchor-10m": ("readings", None),
    "documents-10m": ("readings", None),
    "anchor": ("anchor", None),
    "conversion": ("conversion", "base"),
    "fair": ("fair", None),
}
# The first runs hold a hash of the corpus's files; this is the hash of the same texts.
SAME_TEXTS = {
    "be830d96b31ed42cf3724ba6f02fce99ebb7c30ca46c6709711d293a773fb5ec": (
        "f912d9ff442f84a9255df0bfc0ffcd38401dde0b0238a7a445b3d563a0333c74"
    )
}
# What the old code called local texts, by their fingerprint.
TITLES = {
    "f912d9ff442f84a9255df0bfc0ffcd38401dde0b0238a7a445b3d563a0333c74": "Books",
    "79e7a6d8f2e77f53d38a2b9631800b788f1b8d7b6d318b82abf868d7c80e4dad": "Library",
}
# Files of a campaign: kind, pattern.
OLD = {
    "runs": "runs/*/*/*/record.parquet",
    "losses": "runs/*/*/*/log.parquet",
    "probes": "runs/*/*/*/probes.parquet",
    "flow": "diagnostics/*/*/[0-9][0-9].parquet",
    "curves": "diagnostics/*/*/*-curves.parquet",
    "maps": "diagnostics/*/*/*-maps.parquet",
    "lengths": "beyond/*/*/*/lengths.parquet",
    "copying": "beyond/*/*/*/copying.parquet",
    "self_use": "beyond/*/*/*/self_use.parquet",
    "models": "models.parquet",
    "recall": "recall/*.parquet",
    "steps": "systems/[!cd]*/*.parquet",
    "complexity": "systems/complexity/*.parquet",
    "decode": "systems/decode/*.parquet",
    "checks": "verification.parquet",
    "gradients": "gradients.parquet",
}
# Of an old run's specification, what is its key, of another hash or derived.
NOT_SPECIFIED = ("scale", "variant", "data_hash", "tokens_per_update", "campaign")
READINGS = {"runs": "runs", "losses": "losses", "probes": "probes", "flow": "diagnoses"}
EXAMINED = ("lengths", "copying", "self_use")
RUN_KINDS = ("runs", "losses", "probes", "flow", "curves", "maps", *EXAMINED)
# Columns that are gone: derived from others, or of the code hash.
GONE = {
    "runs": {"code_hash", "golden_hash", "torch", "corpus_sha256", "config_hash"},
    "losses": {"update_tokens", "learning_rate", "tokens_per_second"},
}
SPECIFICATIONS = """
import json, sys, yaml
from dataclasses import asdict
from relation.pipeline.campaign import resolve
config, found = yaml.safe_load(open("config.yaml")), {}
for name in config["campaigns"]:
    campaign = resolve({**config, "campaign": name})
    runs = {
        run.config_hash: {
            "run": run.identity(),
            "data": asdict(campaign.data[run.data]),
            "flow": asdict(campaign.diagnostics_spec(run)),
            "lengths": asdict(campaign.examination_spec(run)),
        }
        for run in (*campaign.known_runs, *campaign.planned_reading_runs)
    }
    jobs = (*campaign.planned_systems, *campaign.planned_recall)
    checks = {"checks": asdict(campaign.verification), "gradients": asdict(campaign.gradients)}
    found[name] = {"runs": runs, "jobs": {j.config_hash: asdict(j) for j in jobs}, **checks}
    both = (campaign.verification, campaign.gradients)
    found[name]["check_hashes"] = [each.config_hash for each in both]
json.dump(found, sys.stdout)
"""


def specifications(code: Path) -> dict[str, dict]:
    """What the old code knows of every campaign's runs, benchmarks and checks, by their hash."""
    command = [sys.executable, "-c", SPECIFICATIONS]
    done = subprocess.run(
        command, cwd=code, env={"PYTHONPATH": str(code)}, capture_output=True, check=True
    )
    found = json.loads(done.stdout)
    # Its 2.2M validation tokens never reached the 10M that its corpus was cut at, so that today
    # it reads the corpus of the other scales, which is not cut.
    for run in found.get("books-100m", {"runs": {}})["runs"].values():
        run["data"]["validation_tokens"] = None
    return found


def model_of(old: dict) -> ModelConfig:
    """A model of the old code."""
    return ModelConfig(**{k: tuple(v) if isinstance(v, list) else v for k, v in old.items()})


def run_of(known: dict, texts: str) -> Run:
    """A run of the old code as today's; `texts`: the fingerprint of its corpus."""
    old, data, flow = known["run"], known["data"], known["flow"]
    names = {each.name for each in fields(Run)}
    taken = {k: v for k, v in old.items() if k in names and k != "model"}
    source = {k: v for k, v in data["source"].items() if k != "kind"}
    read = ("vocabulary", "train_tokens", "validation_tokens", "tokenizer_characters")
    context, name = data["largest_context"], {"campaign": "", "path": None, "source": None}
    corpus = Data(
        **name,
        corpus=data["corpus"],
        title=data["title"],
        fingerprint=texts,
        largest_context=context,
        **{k: data[k] for k in read},
        **source,
    )
    executed = ["device", "compile", "backends", "deterministic", "checkpoint_seconds"]
    executed += ["checkpoint_tokens", "probes", "probe_sequences", "validations"]
    told = {"validation_tokens": None, "campaign": "", "variation": "", "data": corpus}
    return Run(
        **dict.fromkeys(executed),
        **told,
        **taken | {"betas": tuple(old["betas"])},
        model=model_of(old["model"]),
        flow_sequences=flow["sequences"],
        flow_window=flow["window"],
        flow_length=flow["flow_length"],
        rank_length=flow["rank_length"],
    )


def specification(known: dict, run: Run) -> dict:
    """What determines a run's result; of one that goes on from another, its start too."""
    start = known["run"].get("start")
    return run.specification() | ({"start": start} if start else {})


def hash_of_job(kind: str, known: dict, former: str) -> str:
    """Today's hash of a benchmark, of a recall or of the checks."""
    if kind in ("checks", "gradients"):
        if former not in known["check_hashes"]:
            raise SystemExit(f"no {kind} {former}")
        return check_of(known["checks"], known["gradients"]).hash
    old = known["jobs"][former]
    if kind == "recall":
        frozen = {k: tuple(map(tuple_of, v)) for k, v in old.items() if isinstance(v, list)}
        models = tuple(map(model_of, old["models"]))
        return Recall(**old | frozen | {"models": models, "variation": ""}).hash
    sides = tuple(Side(**{**side, "model": model_of(side["model"])}) for side in old["sides"])
    bench = Bench(**old | {"sides": sides, "variation": ""})
    # The backend of an operator that a side does not run changes nothing.
    name = CAMPAIGNS[bench.campaign][0]
    for planned in plan.load({"campaign": name}).benchmarks:
        same = (planned.benchmark, planned.scale) == (bench.benchmark, bench.scale)
        if same and used_alone(planned).hash == used_alone(bench).hash:
            return planned.hash
    return bench.hash


def used_alone(bench: Bench) -> Bench:
    """A benchmark whose sides name the backends of their own operators alone."""
    sides = (
        replace(side, backends={n: b for n, b in side.backends.items() if n in operators})
        for side in bench.sides
        for operators in [{MIXERS[letter] for letter in side.model.layout}]
    )
    return replace(bench, sides=tuple(sides))


def tuple_of(value: object) -> object:
    """A list as a tuple."""
    return tuple(value) if isinstance(value, list) else value


def check_of(old: dict, gradients: dict) -> Check:
    """The checks of the old code as today's."""
    sides = tuple(
        Side(
            side=each["variant"],
            variant=each["variant"],
            backends=each["backends"],
            model=model_of(each["model"]),
            context=each["length"],
            micro=each["micro"],
            accumulation=gradients["accumulation"],
        )
        for each in gradients["variants"]
    )
    return Check(
        **{k: old[k] for k in ("campaign", "backend", "linear", "draws", "precision", "device")},
        variation="",
        shapes=tuple(old["shapes"]),
        gradients=sides,
        gradient_scales=tuple(each["scale"] for each in gradients["variants"]),
        gradient_draws=gradients["draws"],
        compile=gradients["compile"],
    )


def unpacked(folder: Path) -> Path:
    """A shipped campaign's folder, in a temporary copy where its runs lie in an archive."""
    archive = folder / "runs.tar.xz"
    if not archive.exists():
        return folder
    place = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, place)
    copy = Path(place) / folder.name
    with tarfile.open(archive, "r:xz") as tar:
        tar.extractall(copy, filter="data")
    for path in folder.rglob("*.parquet"):
        name = path.relative_to(folder)
        if name.parts[0] not in ("report", "runs", "diagnostics", "beyond"):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes(path.read_bytes())
    return copy


def old_files(folder: Path) -> Iterator[tuple[str, Path, pd.DataFrame, dict]]:
    """Kind, path, rows and origin of each old file of a campaign."""
    patterns = [*OLD.items(), *((k, f"readings/{name}.parquet") for k, name in READINGS.items())]
    for kind, pattern in patterns:
        for path in sorted(folder.glob(pattern)):
            table = pq.read_table(path, partitioning=None, page_checksum_verification=True)
            rows = table.to_pandas()
            if kind == "losses" and "seed" not in rows:
                scale, variant, seed = path.relative_to(folder).parts[1:4]
                rows = rows.assign(scale=scale, variant=variant, seed=int(seed))
            if kind in ("complexity", "decode"):
                rows = rows.assign(scale=path.stem)
            yield kind, path, rows, json.loads(table.schema.metadata[b"relation.origin"])


def keyed(campaign: str, kind: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Old rows with the new campaign, scale and variation."""
    name, variation = CAMPAIGNS[campaign]
    if "reading" in rows and kind != "lengths":
        rows = rows.rename(columns={"reading": "variation"}).assign(campaign=name)
        rows = rows if "scale" in rows else rows.assign(scale="10M")
        if name == "fair":  # all its readings are of scaled residual matrices
            rows = rows.assign(variation=rows["variation"].str.removeprefix("scaled-"))
    else:
        rows = rows.assign(campaign=name, variation=variation)
    if name == "anchor" and "scale" in rows:
        rows = rows.assign(scale=rows["scale"] + "-mini")
    return rows


def with_origin(rows: pd.DataFrame, origin: dict) -> pd.DataFrame:
    """Old rows with the columns of origin; readings hold most of them themselves."""
    if "device" in rows and set(rows["device"]) != {origin["device"]} and "torch" not in rows:
        raise SystemExit(f"devices differ: {set(rows['device'])}, {origin['device']}")
    if "torch" in rows:
        versions = [json.dumps({"torch": version}) for version in rows["torch"]]
        return rows.assign(hash=None, versions=versions)
    return rows.assign(
        hash=None,
        commit=origin["commit"],
        device=origin["device"],
        versions=json.dumps(origin["versions"], sort_keys=True),
        created=origin["created"],
    )


def new_runs(rows: pd.DataFrame, origin: dict, known: dict[str, dict]) -> pd.DataFrame:
    """Rows of runs; `median_tokens_per_second` is filled from the log."""
    made = []
    for row in rows.to_dict("records"):
        if "config_hash" in row:  # of a reading
            former, texts = row["config_hash"], row["corpus_sha256"]
            backends, processes = row["backend"], None
        else:
            former, texts = origin["config_hash"], origin["data_origin"]["corpus_sha256"]
            backends, counts = origin["backends"], origin["processes"]
            processes = counts[0] if len(counts) == 1 else None
        texts = SAME_TEXTS.get(texts, texts)
        old = known["runs"][former]
        run = run_of(old, texts)
        what = specification(old, run)
        if isinstance(backends, dict):
            used = [backends[MIXERS[letter]] for letter in "AFL" if letter in run.model.layout]
            backends = ", ".join(dict.fromkeys(used))
        more = {
            "layout": run.model.layout,
            "d_model": run.model.d_model,
            "heads": run.model.heads,
            "d_ff": run.model.d_ff,
            "vocabulary": run.model.vocab_size,
            **{n: getattr(run, n) for n in ("context", "micro", "accumulation", "learning_rate")},
            "corpus": run.data.title.replace("Local texts", TITLES.get(texts, "Local texts")),
            "corpus_fingerprint": texts,
            "validation_characters": None,
            "backend": backends,
            "precision": run.precision,
            "specification": json.dumps(what, sort_keys=True),
            "former_hash": former,
            "hash": hash_of(what),
            "processes": processes,
        }
        made.append(row | more)
    return pd.DataFrame(made).assign(median_tokens_per_second=np.nan)


def of_run(kind: str, known: dict[str, dict], former: str, texts: str) -> str:
    """Today's hash of a record of a run."""
    old = known["runs"][former]
    run = run_of(old, texts)
    if kind in ("flow", "curves", "maps"):
        return run.flow_hash
    if kind in EXAMINED:
        asked = {k: old["lengths"][k] for k in ("windows", "contexts")}
        return Length(scales=None, variants=(), **asked).hash(run)
    return hash_of(specification(old, run))


def converted(folder: Path, known: dict[str, dict]) -> dict[str, pd.DataFrame]:
    """One old campaign's rows in the new columns, by kind."""
    found: dict[str, list[pd.DataFrame]] = {}
    medians = {}
    for kind, path, rows, origin in old_files(folder):
        rows = keyed(folder.name, kind, with_origin(rows, origin))
        if kind == "runs":
            rows = new_runs(rows, origin, known)
        elif kind not in (*RUN_KINDS, "models"):
            rows = rows.assign(hash=hash_of_job(kind, known, origin["config_hash"]))
        if kind == "losses":
            by_run = rows.groupby(records.UNITS["losses"], sort=False)
            if not (by_run["tokens"].diff().fillna(rows["tokens"]) == rows["update_tokens"]).all():
                raise SystemExit(f"{path}: tokens are not the sum of the updates'")
            rows = rows.assign(gradient_norm=rows.get("gradient_norm", np.nan))
            if "update" not in rows:
                rows = rows.assign(update=by_run.cumcount() + 1)
            if "tokens_per_second" in rows:
                medians |= by_run["tokens_per_second"].median().to_dict()
        if kind == "flow" and "sequence" not in rows:
            rows = rows.assign(sequence=None, length=None)
        found.setdefault(kind, []).append(rows)
    frames = {kind: pd.concat(parts, ignore_index=True) for kind, parts in found.items()}
    unit, runs = records.UNITS["runs"], frames["runs"]
    keys = list(runs[unit].itertuples(index=False, name=None))
    frames["runs"] = runs.assign(median_tokens_per_second=[medians.get(key) for key in keys])
    # Readings' origin stands in their runs alone.
    about = frames["runs"].set_index(unit)[["commit", "device", "versions", "created"]]
    former = frames["runs"].set_index(unit)[["former_hash", "corpus_fingerprint"]]
    for kind in set(RUN_KINDS) & set(frames) - {"runs"}:
        own = frames[kind].drop(columns="hash")
        if CAMPAIGNS[folder.name][1] is None:
            own = own.drop(columns=about.columns)
            own = own.merge(about, left_on=unit, right_index=True, how="left")
        hashes = former.apply(lambda row, kind=kind: of_run(kind, known, *row), axis=1)
        frames[kind] = own.merge(hashes.rename("hash"), left_on=unit, right_index=True, how="left")
    if "maps" in frames:
        maps = frames["maps"]
        frames["maps"] = maps[maps["seed"] == maps.groupby("scale")["seed"].transform("min")]
    return {kind: rows[records.columns(kind)] for kind, rows in frames.items()}


def first_of_equal(kind: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Rows without repeated jobs. Stops where two campaigns shipped different results of one."""
    unit = records.UNITS[kind]
    if kind == "models":
        unit = [*unit, "scale", "variant"]
    kept, seen = [], {}
    about = ["campaign_before", *records.ORIGIN]
    for (key, _), group in rows.groupby([by(rows, unit), "campaign_before"], sort=False):
        values = group.drop(columns=about).reset_index(drop=True)
        if key not in seen:
            seen[key] = values
            kept.append(group)
        elif not values.equals(seen[key]):
            raise SystemExit(f"{kind} of {key} differ between campaigns")
    return pd.concat(kept).drop(columns="campaign_before")


def in_order(kind: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Rows by variation, scale, variant and seed; those of one job in their old order."""
    rows = rows.assign(_size=0)
    if "scale" in rows:
        rows["_size"] = rows["scale"].str.extract(r"^(\d+)", expand=False).astype(float)
    names = ["variation", "_size", "scale", "variant", "seed"]
    if kind not in (*RUN_KINDS, "models"):
        names = ["variation"]
    rows = rows.sort_values(names_in(rows, names), kind="stable", ignore_index=True)
    return rows[records.columns(kind)]


def names_in(rows: pd.DataFrame, names: list[str]) -> list[str]:
    """The names that are columns."""
    return [name for name in names if name in rows]


def campaigns_in(folder: Path) -> list[Path]:
    """The old campaigns at a folder: itself, or those below it."""
    if folder.name in CAMPAIGNS:
        return [folder]
    return [folder / name for name in CAMPAIGNS if (folder / name).is_dir()]


def convert(folders: list[Path], code: Path, target: Path) -> None:
    """Write the new files of old campaigns, merged with those that are there."""
    known = specifications(code)
    new: dict[tuple[str, str], list[pd.DataFrame]] = {}
    for folder in folders:
        for kind, rows in converted(unpacked(folder), known[folder.name]).items():
            name = CAMPAIGNS[folder.name][0]
            new.setdefault((name, kind), []).append(rows.assign(campaign_before=folder.name))
    for (name, kind), parts in sorted(new.items()):
        rows = first_of_equal(kind, pd.concat(parts, ignore_index=True))
        path = target / name / f"{kind}.parquet"
        if path.exists():
            rows, changes = records.merge(kind, records.read(path, kind), rows)
            if changes["refused"]:
                raise SystemExit(f"{path} has other specifications of {changes['refused']}")
        records.write(path, kind, in_order(kind, rows))
        print(f"{path}  {len(rows):,} rows  {path.stat().st_size:,} bytes")


def check(folders: list[Path], target: Path) -> None:
    """Compare every value of the old files with the new; stop at the first difference."""
    counts, gone, seen, groups = Counter(), Counter(), {}, {}
    visited: dict[tuple[str, str], set[str]] = defaultdict(set)
    for folder in folders:
        name = CAMPAIGNS[folder.name][0]
        if name not in seen:
            seen[name] = {
                k: records.read(p, k)
                for k in records.KINDS
                if (p := target / name / f"{k}.parquet").exists()
            }
            records.check_pairs(seen[name]["runs"])
        for kind, path, rows, origin in old_files(unpacked(folder)):
            rows = keyed(folder.name, kind, rows)
            unit = [n for n in (*records.UNITS[kind], "scale", "variant") if n in rows]
            unit = list(dict.fromkeys(n for n in unit if n in records.columns(kind)))
            if (name, kind) not in groups:
                new = seen[name][kind]
                groups[name, kind] = dict(list(new.groupby(by(new, unit), sort=False)))
            found = groups[name, kind]
            for key, group in rows.groupby(by(rows, unit), sort=False):
                if kind == "maps" and key not in found:
                    gone["maps of further seeds"] += len(group)
                    continue
                there = found[key]
                if len(there) != len(group):
                    raise SystemExit(f"{path} {key}: {len(group)} rows became {len(there)}")
                for column in group.columns:
                    if column in GONE.get(kind, ()):
                        gone[f"{kind}.{column}"] += len(group)
                        continue
                    if not same(group[column].to_numpy(), there[column].to_numpy()):
                        if kind == "models" and max(there["created"]) > origin["created"]:
                            gone["models.micro and accumulation, of a newer row"] += 1
                            continue
                        raise SystemExit(f"{path} {key}: {column} differs")
                    counts[name, kind] += len(group)
                # Of equal models one origin is kept; readings hold their origin in their rows.
                of_file = kind != "models" and path.parent.name != "readings"
                for column in ("commit", "created", "device") if of_file else ():
                    if set(there[column]) != {origin[column]}:
                        raise SystemExit(f"{path} {key}: {column} differs")
                visited[name, kind].add(key)
                if kind == "runs":
                    check_run(path, group, there, origin)
                if kind == "losses" and "learning_rate" in group:
                    check_derived(path, group, seen[name]["runs"])
    for (name, kind), found in groups.items():
        if len(folders) > 1 and set(found) - visited[name, kind]:
            raise SystemExit(f"{name} {kind}: no old file has {set(found) - visited[name, kind]}")
    for (name, kind), count in sorted(counts.items()):
        print(f"{name:12} {kind:12} {count:12,} values equal")
    print(f"{sum(counts.values()):,} values equal; left out: ")
    for what, count in sorted(gone.items()):
        print(f"  {what}: {count:,}")


def check_run(path: Path, group: pd.DataFrame, there: pd.DataFrame, origin: dict) -> None:
    """Compare what a run's row took from its origin."""
    defaults = {each.name: each.default for each in (*fields(Run), *fields(ModelConfig))}
    for old, new in zip(group.to_dict("records"), there.to_dict("records"), strict=True):
        spec = json.loads(new["specification"])
        if new["former_hash"] != old.get("config_hash", origin["config_hash"]):
            raise SystemExit(f"{path}: former hash differs")
        if new["hash"] != hash_of(spec):
            raise SystemExit(f"{path}: hash is not the specification's")
        own = {k: v for k, v in origin.get("spec", {}).items() if k not in NOT_SPECIFIED}
        for before, now in ((own, spec), (own.pop("model", {}), spec["model"])):
            for name, value in before.items():
                if now.get(name, plain(defaults.get(name))) != value:
                    raise SystemExit(f"{path}: {name} was {value}, now {now.get(name)}")


def check_derived(path: Path, log: pd.DataFrame, runs: pd.DataFrame) -> None:
    """Compare what a log's columns that are gone can be computed from."""
    run = runs
    for name in records.RUN_KEY:
        run = run[run[name] == log[name].iloc[0]]
    run = run.iloc[0]
    if log["tokens_per_second"].median() != run["median_tokens_per_second"]:
        raise SystemExit(f"{path}: median tokens per second differs")
    spec = json.loads(run["specification"])
    budget, plateau = spec["budget_tokens"], spec["plateau_fraction"]
    after = log["tokens"].to_numpy()
    before = after - np.diff(after, prepend=0)
    rise = np.minimum(1.0, after / spec["warmup_tokens"])
    fall = np.minimum(1.0, (budget - before) / (budget * (1 - plateau)))
    rate = np.minimum(rise, fall) * spec["learning_rate"]
    if not np.allclose(rate, log["learning_rate"], rtol=1e-12, atol=0):
        raise SystemExit(f"{path}: learning rates differ")


def plain(value: object) -> object:
    """A value as JSON holds it."""
    return list(value) if isinstance(value, tuple) else value


def check_plan(name: str) -> None:
    """Stop unless today's configuration plans every shipped run and lists none as to be done."""
    campaign = plan.load({"campaign": name})
    runs = records.read(records.RESULTS / "published" / name / "runs.parquet", "runs")
    address = runs[["scale", "variation", "variant", "seed"]].astype(str).agg("/".join, axis=1)
    planned = {run.name: run for run in campaign.planned}
    known = runs[address.isin(planned)]
    for where, row in zip(address[known.index], known.to_dict("records"), strict=True):
        now, shipped = planned[where].specification(), json.loads(row["specification"])
        if now != shipped:
            odd = {
                k: (shipped.get(k), now.get(k))
                for k in now | shipped
                if shipped.get(k) != now.get(k)
            }
            raise SystemExit(f"{name}: {where} is planned otherwise: {odd}")
    todo = Counter(path.split("/")[0] for path in campaign.files(records.published_hashes))
    todo_runs = {path for path in campaign.files(records.published_hashes)}
    again = [where for where in address if f"runs/{where}/run.parquet" in todo_runs]
    print(
        f"{name}: {len(planned)} runs planned, {len(runs)} shipped, {len(known)} of them planned, "
        f"{len(again)} to be done again; to be made: {dict(todo)}"
    )
    for where in sorted(set(address) - set(planned)):
        print(f"  shipped and not planned: {where}")
    if again:
        raise SystemExit(f"{name}: to be done again: {again}")


def by(rows: pd.DataFrame, unit: list[str]) -> pd.Series:
    """Each row's key as one text."""
    key = pd.Series("", index=rows.index)
    for name in unit:
        key += "/" + rows[name].astype(object).fillna("").astype(str)
    return key


def same(old: np.ndarray, new: np.ndarray) -> bool:
    """Whether two columns have the same values to the last bit; nothing equals nothing."""
    if any(isinstance(value, np.ndarray) for value in old):
        return all(
            a is b or np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
            for a, b in zip(old, new, strict=True)
        )
    none = pd.isna(old)
    return bool((none == pd.isna(new)).all() and (old[~none] == new[~none]).all())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="an old campaign, or a folder of them")
    parser.add_argument("--code", type=Path, default=Path("/tmp/base"), help="the old code")
    parser.add_argument("--target", type=Path, default=records.RESULTS / "published")
    parser.add_argument("--check", action="store_true", help="compare old values with new")
    given = parser.parse_args()
    folders = campaigns_in(given.folder)
    if not folders:
        sys.exit(f"{given.folder} holds none of the campaigns {', '.join(CAMPAIGNS)}")
    if given.check:
        check(folders, given.target)
        for name in sorted({CAMPAIGNS[folder.name][0] for folder in folders} - {"conversion"}):
            check_plan(name)
    else:
        convert(folders, given.code, given.target)


if __name__ == "__main__":
    main()
