"""The pipeline: an invoice for every order, customers' totals over time, and their newest orders in a table.

Orders that cannot be read become dead letters. All four count together.
"""

import os

from pyspark.sql import DataFrame, functions

from semel.pipeline import Delta, Json, Lookup, Topic, pipeline

ORDER = "order BIGINT, at TIMESTAMP, customer STRING, product STRING, quantity BIGINT"
PRODUCT = "product STRING, price BIGINT"


@pipeline(
    "shop",
    source={
        "orders": Topic("orders", parse=Json(ORDER), bad="orders-dead"),
        "products": Lookup("products"),
    },
    sink={
        "invoices": Topic("invoices"),
        "totals": Topic("totals"),
        "newest": Delta(os.environ.get("SHOP_LAKE", "lake"), merge_on="customer", order_by="order"),
    },
)
def shop(orders: DataFrame, products: DataFrame) -> dict[str, DataFrame]:
    """Look up prices, and add up by customer and time."""
    prices = functions.broadcast(_rows(products, PRODUCT))
    priced = orders.join(prices, "product").selectExpr("*", "quantity * price AS amount")
    invoices = priced.select("order", "customer", "product", "amount")
    spent = (
        priced.withWatermark("at", "10 seconds")
        .groupBy("customer", functions.window("at", "10 seconds"))
        .agg(functions.count("*").alias("orders"), functions.sum("amount").alias("amount"))
    )
    totals = spent.selectExpr("customer", "unix_timestamp(window.start) AS since", "orders", "amount")
    return {"invoices": _records(invoices), "totals": _records(totals), "newest": invoices}


def _rows(records: DataFrame, schema: str) -> DataFrame:
    """Parse the values into columns."""
    parsed = functions.from_json(records.value.cast("string"), schema)
    return records.select(parsed.alias("row")).select("row.*")


def _records(rows: DataFrame) -> DataFrame:
    """Turn rows into JSON, keyed by customer."""
    return rows.select(rows.customer.alias("key"), functions.to_json(functions.struct("*")).alias("value"))
