// A reporter for node's test runner: one line for each start and each end, with the names of all suites around a test.
export default async function* report(source) {
  const path = [];
  for await (const { type, data } of source) {
    const kind = type.replace("test:", "");
    if (!["start", "pass", "fail"].includes(kind)) continue;
    path.length = data.nesting;
    path[data.nesting] = data.name;
    const name = path.join(" > ");
    if (kind === "start") yield `start ${name}\n`;
    else if (data.details?.type !== "suite") yield `${data.skip === undefined ? kind : "skip"} ${name}\n`;
    if (kind === "fail" && data.details?.type !== "suite") yield `${data.details?.error?.stack ?? ""}\n`;
  }
}
