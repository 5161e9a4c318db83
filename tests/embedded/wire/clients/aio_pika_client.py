import asyncio
import sys

import aio_pika


async def main(url: str) -> None:
    connection = await aio_pika.connect_robust(url)
    async with connection:
        channel = await connection.channel(publisher_confirms=True)
        await channel.set_qos(prefetch_count=10)
        exchange = await channel.declare_exchange("aio", aio_pika.ExchangeType.TOPIC)
        queue = await channel.declare_queue("aio", durable=True)
        await queue.bind(exchange, "a.#")
        for number in range(100):
            await exchange.publish(aio_pika.Message(b"%d" % number, headers={"n": number}), "a.b")
        found = []
        async with queue.iterator() as messages:
            async for message in messages:
                async with message.process():
                    found.append((message.body, message.headers["n"]))
                if len(found) == 100:
                    break
        assert found == [(b"%d" % number, number) for number in range(100)]


asyncio.run(main(sys.argv[1]))
