"""Creates `src/ramify/demo/flights.parquet`, the data of `ramify demo`, from nycflights13 (CC0).

    python examples/make_flights.py FOLDER

FOLDER holds `flights.parquet`: the `flights` table of the R package nycflights13, all 336,776 departures
from New York's three airports in 2013. The script

- drops flights without a tail number or an arrival delay (they were cancelled or diverted), which
  leaves 327,346 flights of 4,037 aircraft;
- adds `late`: whether the flight arrived more than 15 minutes after its scheduled time, as the US
  Department of Transportation counts it;
- keeps seven columns, in the smallest types that hold them;
- sorts rows by aircraft and then by scheduled departure, so that an aircraft's first flights come
  first.
"""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

TARGET = Path(__file__).resolve().parents[1] / "src/ramify/demo/flights.parquet"
LATE = 15  # minutes
NEEDED = "year month day sched_dep_time arr_delay tailnum carrier origin hour distance".split()


def reduced(flights: pa.Table) -> pa.Table:
    """The columns of the demo, one row per flight that arrived."""
    known = pc.and_(pc.is_valid(flights["tailnum"]), pc.is_valid(flights["arr_delay"]))
    order = [(name, "ascending") for name in ("tailnum", "month", "day", "sched_dep_time")]
    flights = flights.filter(known).sort_by(order)
    text = lambda name: flights[name].cast(pa.string()).combine_chunks().dictionary_encode()
    return pa.table(
        {
            "tailnum": text("tailnum"),
            "day": _day_of_year(flights),
            "carrier": text("carrier"),
            "origin": text("origin"),
            "hour": flights["hour"].cast(pa.int8()),
            "distance": flights["distance"].cast(pa.int16()),
            "late": pc.greater(flights["arr_delay"], LATE).cast(pa.int8()),
        }
    )


def _day_of_year(flights: pa.Table) -> pa.ChunkedArray:
    """1 to 365."""
    parts = [flights[name].cast(pa.string()) for name in ("year", "month", "day")]
    texts = pc.binary_join_element_wise(*(pc.utf8_lpad(part, 2, "0") for part in parts), "-")
    return pc.day_of_year(texts.cast(pa.date32())).cast(pa.int16())


def main(folder: str) -> None:
    flights = reduced(pq.read_table(Path(folder) / "flights.parquet", columns=NEEDED))
    pq.write_table(flights, TARGET, compression="zstd", compression_level=19)
    print(f"{TARGET}: {flights.num_rows:,} flights, {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
