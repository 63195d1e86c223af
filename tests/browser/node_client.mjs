// Plays the scenario with LangGraph's SDK for Node, as `python_client.py` does with the one for Python.
//
//     node node_client.mjs SERVER SCENARIO WORKSPACE MODEL
//
// It prints one JSON object: what each step of the scenario saw, without ids and times.
import { readFileSync } from "node:fs";
import { Client } from "@langchain/langgraph-sdk";

const GRAPH = "mendgraph";
const [url, scenario, workspace, model] = process.argv.slice(2);
const sdk = new Client({ apiUrl: url });
const context = { workspace, model, read_ahead: false, allowed_programs: [] };
const { thread_id: thread } = await sdk.threads.create();

const request = (task) => ({ messages: [{ role: "user", content: task }] });
const asked = (question) => question.calls.map((each) => [each.tool, each.path, each.rule]);
const picked = (map, names) => Object.fromEntries(names.map((name) => [name, map[name]]));
const without = (map, name) => Object.fromEntries(Object.entries(map).filter(([key]) => key !== name));
const past = () => sdk.threads.getHistory(thread, { limit: 100 });

async function streamed(more) {
  const nodes = [], errors = [];
  let text = "";
  for await (const part of sdk.runs.stream(thread, GRAPH, { streamMode: ["updates", "custom"], ...more })) {
    if (part.event === "updates") nodes.push(...Object.keys(part.data));
    else if (part.event === "custom" && part.data.type === "text") text += part.data.text;
    else if (part.event === "error") errors.push(part.data);
  }
  return { nodes, text, errors };
}

const plays = {
  async assistants() {
    return (await sdk.assistants.search({ graphId: GRAPH })).map((each) => [each.graph_id, each.name]);
  },

  async schemas(step) {
    const [assistant] = await sdk.assistants.search({ graphId: GRAPH });
    const found = await sdk.assistants.getSchemas(assistant.assistant_id);
    return {
      input: Object.keys(found.input_schema.properties).sort(),
      output: Object.keys(found.output_schema.properties).sort(),
      form: Object.fromEntries(
        step.fields.map((name) => [name, without(found.context_schema.properties[name], "description")]),
      ),
    };
  },

  run(step) {
    if (step.resume) return streamed({ command: { resume: step.resume } });
    return streamed({ context: { ...context, ...step.context }, input: step.task ? request(step.task) : null });
  },

  async state() {
    const { next, tasks, values } = await sdk.threads.getState(thread);
    return {
      next,
      asked: tasks.flatMap((task) => task.interrupts.map((each) => asked(each.value))),
      verdicts: values.verdicts.map((each) => [each.kind, each.rule, each.path]),
      results: values.results.map((each) => [each.tool, each.result.error?.code ?? null]),
      healing: values.healing_attempts.map((each) => each.errors.map((error) => error.line_content)),
      loop: values.loop.verdict,
      changed: values.changes.map((each) => each.path),
      outcome: values.outcome && picked(values.outcome, ["kind", "reason", "answer", "changed_files"]),
      messages: values.messages.filter((each) => each.type !== "tool").map((each) => [each.type, each.content]),
    };
  },

  async history() {
    return (await past()).map((state) => state.next);
  },

  async fork(step) {
    const point = (await past()).find((state) => state.next.length === 1 && state.next[0] === step.before);
    return streamed({ checkpointId: point.checkpoint.checkpoint_id, input: null });
  },

  async update(step) {
    await sdk.threads.updateState(thread, { values: request(step.task), asNode: step.as_node });
    const { next, values } = await sdk.threads.getState(thread);
    return { next, last: values.messages.at(-1).content };
  },

  async cancel(step) {
    let run = "", text = "";
    const parts = sdk.runs.stream(thread, GRAPH, { input: request(step.task), context, streamMode: ["custom"] });
    for await (const part of parts) {
      if (part.event === "metadata") run = part.data.run_id;
      if (part.event === "custom" && part.data.type === "text" && !text) {
        text = part.data.text;
        await sdk.runs.cancel(thread, run, true, "interrupt");
      }
    }
    return {
      text,
      run: (await sdk.runs.get(thread, run)).status,
      thread: (await sdk.threads.get(thread)).status,
      next: (await sdk.threads.getState(thread)).next,
    };
  },
};

const seen = {};
for (const step of JSON.parse(readFileSync(scenario, "utf8")).steps) seen[step.name] = await plays[step.do](step);
console.log(JSON.stringify(seen));
