// node amqplib by callbacks: each publish hears of its own confirm, and of its refusal where the queue is full
const assert = require("node:assert/strict");
const { createRequire } = require("node:module");

const amqp = createRequire(process.argv[3] + "/")("amqplib/callback_api");
const full = { arguments: { "x-max-length": 3, "x-overflow": "reject-publish" } };
const outcomes = [];
const found = [];

function must(next) {
  return (error, result) => {
    if (error) throw error;
    next(result);
  };
}

amqp.connect(process.argv[2], must((connection) => {
  connection.createConfirmChannel(must((channel) => {
    channel.assertQueue("full", full, must(() => {
      for (let number = 0; number < 5; number++) {
        channel.sendToQueue("full", Buffer.from(String(number)), {}, (error) => {
          outcomes.push(error === null ? "ack" : "nack");
          if (outcomes.length === 5) consume(connection, channel);
        });
      }
    }));
  }));
}));

function consume(connection, channel) {
  channel.consume("full", (message) => {
    found.push(message.content.toString());
    channel.ack(message);
    if (found.length === 3) {
      channel.deleteQueue("full", {}, must(() => connection.close(must(check))));
    }
  });
}

function check() {
  assert.deepEqual(outcomes.sort(), ["ack", "ack", "ack", "nack", "nack"]);
  assert.deepEqual(found, ["0", "1", "2"]);
  console.log("done");
}
