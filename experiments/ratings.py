"""Ratings for the user-preference model: MovieLens 25M, MovieLens 1M, or simulated ones.

Nothing is downloaded and nothing of MovieLens is kept: a folder is named, read and forgotten. The
paper's preprocessing: users above 1,000 ratings are dropped, ratings above 3 are 1, movies have 10
features, a tenth of each user's ratings is the test part. Where it is silent this was chosen:

- ratings of movies that the tag genome does not cover are dropped, before users are counted
  (`missing="zero"` keeps them with features of zero);
- the features are the genome's principal components over the movies that it covers, centred, not
  scaled to unit variance (`whiten=True` does), each with the sign that makes its largest loading
  positive;
- the smaller scales take users at random, all ratings of each, until the paper's number is reached;
- a user's tenth is rounded up or down at random, so that the total is a tenth (`Groups.split`).
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet

import ramify as rf
from experiments import paper


class Ratings(NamedTuple):
    """Ratings in long format, where they are from, and features [movies, F] of each movie."""

    source: str
    user: np.ndarray
    movie: np.ndarray  # row of `features`; -1 where there is none
    liked: np.ndarray
    features: np.ndarray


def read(folder: Path, *, missing: str = "drop", whiten: bool = False) -> Ratings:
    """Reads a folder of ml-25m or of MovieLens 1M, whichever it is, with the paper's preprocessing."""
    if (folder / "genome-scores.csv").exists() and (folder / "ratings.csv").exists():
        return _kept(_movielens_25m(folder, whiten), missing)
    if (folder / "features10_tags_genres.parquet").exists():
        return _kept(_movielens_1m(folder), missing)
    raise FileNotFoundError(
        f"{folder} holds neither MovieLens 25M (ratings.csv and genome-scores.csv, from "
        "grouplens.org/datasets/movielens/25m) nor MovieLens 1M (ratings.parquet and "
        "features10_tags_genres.parquet); name such a folder, or use --simulate."
    )


def split(ratings: Ratings, scale: str, seed: int = 0) -> tuple[rf.Groups, rf.Groups]:
    """Training and test part at one of the paper's scales; "large" takes every user."""
    kept = np.ones(len(ratings.user), bool)
    if scale != "large":
        kept = _some_users(ratings.user, paper.TRAIN[scale] + paper.TEST[scale], seed)
    table = {
        "user": ratings.user[kept],
        "x": _rows(ratings.features, ratings.movie[kept]),
        "y": ratings.liked[kept].astype(np.int8),
    }
    return rf.Groups.from_table(table, by="user", rows=["x", "y"]).split(0.1, seed=seed)


def simulate(ratings: int, seed: int = 0, dim: int = paper.FEATURES) -> Ratings:
    """Ratings drawn from the model: 20 to 1,000 of each user, 127 on average, as many as asked.

    The truth is a fixed mean and covariance of tastes. Every rating is of a movie of its own.
    """
    rng = np.random.default_rng(seed)
    users = max(ratings // 127 * 2, 1)
    sizes = np.clip(np.exp(rng.normal(np.log(71), 1.1, users)), 20, 1000).astype(np.int64)
    sizes = sizes[: int(np.searchsorted(np.cumsum(sizes), ratings)) + 1]
    sizes[-1] -= max(sizes.sum() - ratings, 0)
    factor = np.tril(0.15 * rng.normal(size=(dim, dim)), -1) + np.diag(rng.uniform(0.3, 0.7, dim))
    taste = rng.normal(0, 0.3, dim) + rng.normal(size=(len(sizes), dim)) @ factor.T
    user = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    x = rng.standard_normal((len(user), dim), np.float32)
    logits = np.einsum("rm,rm->r", x, taste.astype(np.float32)[user])
    liked = rng.random(len(user), np.float32) < 1 / (1 + np.exp(-logits))
    return Ratings("simulated", user, np.arange(len(user)), liked, x)


def counts(train: rf.Groups, test: rf.Groups, scale: str) -> dict[str, int]:
    """Ratings here beside those that the paper's tables imply."""
    return {
        "users": len(train),
        "train": train.n_rows,
        "paper's train": paper.TRAIN[scale],
        "test": test.n_rows,
        "paper's test": paper.TEST[scale],
    }


def check_counts(found: dict[str, int]) -> str:
    """Whether the counts of a full MovieLens 25M are those the tables imply, in words.

    Both printed tables have four or five digits, so the counts are implied to one in a thousand.
    """
    off = [
        f"{part}: {found[part]:,} here, {implied:,} implied"
        for part, implied in (("train", found["paper's train"]), ("test", found["paper's test"]))
        if abs(found[part] / implied - 1) > 0.005
    ]
    return "; ".join(off)


def _movielens_25m(folder: Path, whiten: bool) -> Ratings:
    """ratings.csv (userId, movieId, rating, timestamp), genome-scores.csv (movieId, tagId, relevance)."""
    table = _csv(
        folder / "ratings.csv",
        {"userId": pa.int32(), "movieId": pa.int32(), "rating": pa.float32()},
    )
    scores = _csv(
        folder / "genome-scores.csv",
        {"movieId": pa.int32(), "tagId": pa.int32(), "relevance": pa.float32()},
    )
    movies, row = np.unique(scores["movieId"], return_inverse=True)
    tags, column = np.unique(scores["tagId"], return_inverse=True)
    genome = np.zeros((len(movies), len(tags)), np.float32)
    genome[row, column] = scores["relevance"]
    features = principal_components(genome, paper.FEATURES, whiten)
    movie = _positions(movies, table["movieId"])
    return Ratings("ml-25m", table["userId"], movie, table["rating"] > paper.LIKED, features)


def _movielens_1m(folder: Path) -> Ratings:
    """The original MovieLens 1M, with features made of genres and tags in the genome's place."""
    table = parquet.read_table(
        folder / "ratings.parquet", columns=["user_id", "movie_id", "rating"]
    )
    about = parquet.read_table(folder / "features10_tags_genres.parquet")
    known = ~about["imputed_zero"].to_numpy()
    ids = about["movie_id"].to_numpy()[known]
    columns = [about[f"f{k}"].to_numpy()[known] for k in range(paper.FEATURES)]
    order = np.argsort(ids)
    movie = _positions(ids[order], table["movie_id"].to_numpy())
    features = np.stack(columns, 1)[order].astype(np.float32)
    liked = table["rating"].to_numpy() > paper.LIKED
    return Ratings("ml-1m", table["user_id"].to_numpy(), movie, liked, features)


def principal_components(x: np.ndarray, count: int, whiten: bool = False) -> np.ndarray:
    """Scores [n, count] of centred rows on their first principal axes, by a singular value split.

    Example:
        >>> principal_components(np.array([[1.0, 0.0], [3.0, 0.0], [5.0, 0.0]]), 1).ravel().tolist()
        [-2.0, 0.0, 2.0]
    """
    if min(x.shape) < count:
        raise ValueError(f"{count} components were asked of a matrix of shape {x.shape}.")
    centred = x - x.mean(0)
    left, size, axes = np.linalg.svd(centred, full_matrices=False)
    largest = np.argmax(np.abs(axes[:count]), 1)
    sign = np.sign(axes[np.arange(count), largest])
    scores = left[:, :count] * (sign * size[:count])
    return (scores / scores.std(0) if whiten else scores).astype(np.float32)


def _kept(ratings: Ratings, missing: str) -> Ratings:
    """Without ratings that have no features, and then without users above 1,000 ratings."""
    kept = ratings.movie >= 0 if missing == "drop" else np.ones(len(ratings.movie), bool)
    _, user = np.unique(ratings.user, return_inverse=True)
    kept &= np.bincount(user, weights=kept)[user] <= paper.MOST_RATINGS
    return ratings._replace(
        user=ratings.user[kept], movie=ratings.movie[kept], liked=ratings.liked[kept]
    )


def _some_users(user: np.ndarray, wanted: int, seed: int) -> np.ndarray:
    """Rows of users taken in random order, up to the first that brings the ratings wanted."""
    names, code, size = np.unique(user, return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(names))
    upto = np.cumsum(size[order])
    take = int(np.searchsorted(upto, wanted)) + 1
    chosen = np.zeros(len(names), bool)
    chosen[order[:take]] = True
    return chosen[code]


def _rows(features: np.ndarray, movie: np.ndarray) -> np.ndarray:
    return np.where((movie >= 0)[:, None], features[movie], np.float32(0))


def _positions(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where each wanted id is among known, sorted ids; -1 for none."""
    place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[place] == wanted, place, -1)


def _csv(path: Path, types: dict[str, pa.DataType]) -> dict[str, np.ndarray]:
    options = csv.ConvertOptions(column_types=types, include_columns=list(types))
    table = csv.read_csv(path, convert_options=options)
    return {name: table[name].to_numpy() for name in types}
