// node amqplib by promises: confirms, a return, consume with prefetch, get, a refusal, a consumer's end
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const amqp = createRequire(process.argv[3] + "/")("amqplib");
const connection = await amqp.connect(process.argv[2]);
const channel = await connection.createConfirmChannel();
const returned = [];
channel.on("return", (message) => returned.push(message.fields.replyText));
await channel.assertExchange("node", "topic", { durable: true });
await channel.assertQueue("node", { durable: true, arguments: { "x-queue-type": "quorum" } });
await channel.bindQueue("node", "node", "a.#");
await channel.prefetch(10);
for (let number = 0; number < 100; number++) {
  channel.publish("node", "a.b", Buffer.from(String(number)), { persistent: true, headers: { n: number } });
}
channel.publish("node", "nowhere", Buffer.from("lost"), { mandatory: true });
await channel.waitForConfirms();
assert.deepEqual(returned, ["NO_ROUTE"]);

const found = [];
let consumer;
const all = new Promise((done) => {
  consumer = channel.consume("node", (message) => {
    if (message === null) return done("cancelled");
    found.push([message.content.toString(), message.properties.headers.n]);
    if (found.length === 5) return channel.nack(message);
    channel.ack(message);
    if (found.length === 101) channel.deleteQueue("node");
  });
});
await consumer;
assert.equal(await all, "cancelled");
assert.equal(new Set(found.map(([body]) => body)).size, 100);
assert.ok(found.every(([body, number]) => body === String(number)));

const other = await connection.createChannel();
other.on("error", () => {});
await assert.rejects(other.checkQueue("node"), /404 .*NOT_FOUND - no queue 'node' in vhost/);
await channel.assertQueue("left", { exclusive: true });
channel.sendToQueue("left", Buffer.from("x"));
await channel.waitForConfirms();
assert.equal((await channel.get("left", { noAck: true })).content.toString(), "x");
assert.equal(await channel.get("left"), false);
await connection.close();
