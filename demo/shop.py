"""The pipeline: an invoice for every order, in a topic and in a table, and customers' totals over time."""

import os

from pyspark.sql import DataFrame, functions

from semel.pipeline import Delta, Lookup, Topic, pipeline

ORDER = "order BIGINT, at TIMESTAMP, customer STRING, product STRING, quantity BIGINT"
PRODUCT = "product STRING, price BIGINT"


@pipeline(
    "shop",
    source={"orders": Topic("orders"), "products": Lookup("products")},
    sink={
        "invoices": Topic("invoices"),
        "totals": Topic("totals"),
        "lake": Delta(os.environ.get("SHOP_LAKE", "lake")),
    },
)
def shop(orders: DataFrame, products: DataFrame) -> dict[str, DataFrame]:
    """Look up prices, and add up by customer and time."""
    prices = functions.broadcast(_rows(products, PRODUCT))
    priced = _rows(orders, ORDER).join(prices, "product").selectExpr("*", "quantity * price AS amount")
    invoices = priced.select("order", "customer", "product", "amount")
    spent = (
        priced.withWatermark("at", "10 seconds")
        .groupBy("customer", functions.window("at", "10 seconds"))
        .agg(functions.count("*").alias("orders"), functions.sum("amount").alias("amount"))
    )
    totals = spent.selectExpr("customer", "unix_timestamp(window.start) AS since", "orders", "amount")
    return {"invoices": _records(invoices), "totals": _records(totals), "lake": invoices}


def _rows(records: DataFrame, schema: str) -> DataFrame:
    """Parse the values into columns."""
    parsed = functions.from_json(records.value.cast("string"), schema)
    return records.select(parsed.alias("row")).select("row.*")


def _records(rows: DataFrame) -> DataFrame:
    """Turn rows into JSON, keyed by customer."""
    return rows.select(rows.customer.alias("key"), functions.to_json(functions.struct("*")).alias("value"))
