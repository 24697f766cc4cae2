// What an application does, by KafkaJS: each line of the output is an outcome, a scenario, and why.
import { randomUUID } from 'node:crypto'
import kafkajs from 'kafkajs'

const { Kafka, CompressionTypes, logLevel } = kafkajs
const kafka = new Kafka({ clientId: 'suites', brokers: [process.argv[2]], logLevel: logLevel.NOTHING })
const LONG = 40_000

const fresh = (word) => `${word}-${randomUUID().slice(0, 8)}`

async function withAdmin(act) {
  const admin = kafka.admin()
  await admin.connect()
  try {
    return await act(admin)
  } finally {
    await admin.disconnect()
  }
}

async function withProducer(options, act) {
  const producer = kafka.producer({ allowAutoTopicCreation: false, ...options })
  await producer.connect()
  try {
    return await act(producer)
  } finally {
    await producer.disconnect()
  }
}

async function topic(word, partitions = 1) {
  const name = fresh(word)
  await withAdmin((admin) =>
    admin.createTopics({ waitForLeaders: true, topics: [{ topic: name, numPartitions: partitions }] }),
  )
  return name
}

function equal(found, expected) {
  if (JSON.stringify(found) !== JSON.stringify(expected)) {
    throw new Error(`${JSON.stringify(found).slice(0, 200)} instead of ${JSON.stringify(expected).slice(0, 200)}`)
  }
}

async function until(isSo, what) {
  const end = Date.now() + LONG
  while (!(await isSo())) {
    if (Date.now() > end) throw new Error(`not within ${LONG} ms: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}

const numbered = (word, count) => Array.from({ length: count }, (_, number) => `${word}-${number}`)
const messages = (values) => values.map((value) => ({ key: value, value }))

/** Reads until the last value has come; a reader of committed records, as KafkaJS is by default. */
async function read(name, last, options = {}) {
  const consumer = kafka.consumer({ groupId: fresh('group'), sessionTimeout: 10_000, ...options })
  const found = []
  await consumer.connect()
  try {
    await consumer.subscribe({ topics: [name], fromBeginning: true })
    await consumer.run({ eachMessage: async ({ message }) => found.push(message.value.toString()) })
    await until(() => found.includes(last), `reading ${last}`)
  } finally {
    await consumer.disconnect()
  }
  return found
}

const scenarios = {
  'produce and consume': async () => {
    const name = await topic('plain')
    await withProducer({}, (producer) => producer.send({ topic: name, messages: messages(numbered('a', 100)) }))
    equal(await read(name, 'a-99'), numbered('a', 100))
  },
  'keys, headers and compression': async () => {
    const name = await topic('headers')
    await withProducer({}, (producer) =>
      producer.send({
        topic: name,
        compression: CompressionTypes.GZIP,
        messages: [{ key: 'k', value: 'v', headers: { h: 'x' } }],
      }),
    )
    const consumer = kafka.consumer({ groupId: fresh('group') })
    const found = []
    await consumer.connect()
    await consumer.subscribe({ topics: [name], fromBeginning: true })
    await consumer.run({
      eachMessage: async ({ message }) =>
        found.push([message.key.toString(), message.value.toString(), message.headers.h.toString()]),
    })
    await until(() => found.length, 'a message')
    await consumer.disconnect()
    equal(found, [['k', 'v', 'x']])
  },
  'an idempotent producer': async () => {
    const name = await topic('idempotent')
    await withProducer({ idempotent: true, maxInFlightRequests: 1 }, async (producer) => {
      for (const value of numbered('i', 20)) await producer.send({ topic: name, messages: messages([value]) })
    })
    equal(await read(name, 'i-19'), numbered('i', 20))
  },
  'a committed and an aborted transaction': async () => {
    const name = await topic('transactions')
    await withProducer({ transactionalId: fresh('id'), maxInFlightRequests: 1, idempotent: true }, async (producer) => {
      for (const [word, end] of [['kept', 'commit'], ['dropped', 'abort'], ['last', 'commit']]) {
        const transaction = await producer.transaction()
        await transaction.send({ topic: name, messages: messages(numbered(word, 5)) })
        await transaction[end]()
      }
    })
    equal(await read(name, 'last-4'), [...numbered('kept', 5), ...numbered('last', 5)])
  },
  'offsets in a transaction': async () => {
    const [from, to] = [await topic('from'), await topic('to')]
    const groupId = fresh('group')
    await withProducer({}, (producer) => producer.send({ topic: from, messages: messages(numbered('x', 10)) }))
    await withProducer({ transactionalId: fresh('id'), maxInFlightRequests: 1, idempotent: true }, async (producer) => {
      const transaction = await producer.transaction()
      await transaction.send({ topic: to, messages: messages(numbered('x', 10)) })
      await transaction.sendOffsets({
        consumerGroupId: groupId,
        topics: [{ topic: from, partitions: [{ partition: 0, offset: '10' }] }],
      })
      await transaction.commit()
    })
    equal(await read(to, 'x-9'), numbered('x', 10))
    const [offsets] = await withAdmin((admin) => admin.fetchOffsets({ groupId, topics: [from] }))
    equal(offsets.partitions[0].offset, '10')
  },
  'a fenced producer': async () => {
    const name = await topic('fenced')
    const options = { transactionalId: fresh('id'), maxInFlightRequests: 1, idempotent: true, retry: { retries: 1 } }
    await withProducer(options, async (first) => {
      const old = await first.transaction()
      await old.send({ topic: name, messages: messages(['old']) })
      await withProducer(options, async (second) => {
        const next = await second.transaction()
        await next.send({ topic: name, messages: messages(['new']) })
        await next.commit()
      })
      const refused = await old.commit().then(() => 'committed', (error) => error.type || error.name)
      if (!['INVALID_PRODUCER_EPOCH', 'PRODUCER_FENCED'].includes(refused)) throw new Error(`the old one: ${refused}`)
    })
    equal(await read(name, 'new'), ['new'])
  },
  'two members share and take over': async () => {
    const name = await topic('shared', 4)
    const groupId = fresh('group')
    const found = []
    const members = [0, 1].map(() =>
      kafka.consumer({ groupId, sessionTimeout: 10_000, heartbeatInterval: 300, rebalanceTimeout: 10_000 }),
    )
    const assigned = [[], []]
    for (const [number, member] of members.entries()) {
      member.on(member.events.GROUP_JOIN, ({ payload }) => (assigned[number] = payload.memberAssignment[name] || []))
      await member.connect()
      await member.subscribe({ topics: [name], fromBeginning: true })
      await member.run({ eachMessage: async ({ message }) => found.push(message.value.toString()) })
    }
    await until(() => assigned[0].length === 2 && assigned[1].length === 2, 'two partitions each')
    await members[0].disconnect()
    await until(() => assigned[1].length === 4, 'all partitions of the one that is left')
    await withProducer({}, (producer) =>
      producer.send({
        topic: name,
        messages: numbered('m', 8).map((value, number) => ({ value, partition: number % 4 })),
      }),
    )
    await until(() => found.length === 8, 'eight messages')
    await members[1].disconnect()
    equal(found.sort(), numbered('m', 8))
  },
  'topics, partitions and configs': async () => {
    const name = await topic('admin', 2)
    await withAdmin(async (admin) => {
      await admin.createPartitions({ topicPartitions: [{ topic: name, count: 3 }] })
      await until(async () => {
        const { topics } = await admin.fetchTopicMetadata({ topics: [name] })
        return topics[0].partitions.length === 3
      }, 'the new partition')
      await admin.alterConfigs({
        validateOnly: false,
        resources: [{ type: 2, name, configEntries: [{ name: 'retention.ms', value: '1000000' }] }],
      })
      await until(async () => {
        const { resources } = await admin.describeConfigs({
          includeSynonyms: false,
          resources: [{ type: 2, name, configNames: ['retention.ms'] }],
        })
        return resources[0].configEntries[0].configValue === '1000000'
      }, 'the new config')
      await admin.deleteTopics({ topics: [name] })
      await until(async () => !(await admin.listTopics()).includes(name), 'a deleted topic')
    })
  },
  'records, offsets and groups': async () => {
    const name = await topic('records')
    const groupId = fresh('group')
    await withProducer({}, (producer) => producer.send({ topic: name, messages: messages(numbered('r', 10)) }))
    await withAdmin(async (admin) => {
      await admin.setOffsets({ groupId, topic: name, partitions: [{ partition: 0, offset: '4' }] })
      const [set] = await admin.fetchOffsets({ groupId, topics: [name] })
      equal(set.partitions[0].offset, '4')
      equal((await admin.describeGroups([groupId])).groups[0].state, 'Empty')
      await admin.deleteTopicRecords({ topic: name, partitions: [{ partition: 0, offset: '6' }] })
      const [part] = await admin.fetchTopicOffsets(name)
      equal([part.low, part.high], ['6', '10'])
      await admin.deleteGroups([groupId])
      equal((await admin.listGroups()).groups.some((group) => group.groupId === groupId), false)
    })
  },
}

for (const [name, play] of Object.entries(scenarios)) {
  try {
    await play()
    console.log(`passed ${name}`)
  } catch (error) {
    console.log(`failed ${name}: ${String(error.message || error).replaceAll('\n', ' ')}`)
  }
}
process.exit(0)
