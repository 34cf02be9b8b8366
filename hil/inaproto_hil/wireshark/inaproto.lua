-- Wireshark dissector of the INA header (NetReduce section 3.1): 40 bytes at the head of a message's data,
-- behind the RETH of its first packet. Layout: inaproto/wire/ina_header.py. The key is a secret of the ring and
-- shown only by its bytes.
--
--   wireshark -X lua_script:$(inaproto inspect --dissector-path) capture.pcapng
--
-- It runs behind Wireshark's own RoCEv2 dissector and finds the header by its tag. Headers that hosts send one
-- another beside the accelerators ("INAH") have the same layout, with the kind of the payload in the high
-- half of the flags.

local ina = Proto("inaproto", "In-network aggregation")

local DTYPES = { [0] = "f32", "i32", "f16", "bf16", "f64", "i64" }
local OPS = { [0] = "sum", "max", "min" }
local KINDS = { [0] = "-", "accumulators", "result" }

local f = ina.fields
f.magic = ProtoField.string("inaproto.magic", "Tag")
f.version = ProtoField.uint8("inaproto.version", "Version")
f.dtype = ProtoField.uint8("inaproto.dtype", "Element type", base.DEC, DTYPES)
f.op = ProtoField.uint8("inaproto.op", "Reduction", base.DEC, OPS)
f.flags = ProtoField.uint8("inaproto.flags", "Flags", base.HEX)
f.last = ProtoField.bool("inaproto.flags.last", "Last message of its operation", 8, nil, 0x01)
f.result = ProtoField.bool("inaproto.flags.result", "Result", 8, nil, 0x02)
f.kind = ProtoField.uint8("inaproto.flags.kind", "Payload between hosts", base.DEC, KINDS, 0xf0)
f.ring_id = ProtoField.uint32("inaproto.ring_id", "Ring")
f.epoch = ProtoField.uint32("inaproto.epoch", "Epoch")
f.op_index = ProtoField.uint32("inaproto.op_index", "Operation")
f.msg_id = ProtoField.uint32("inaproto.msg_id", "Message")
f.rank = ProtoField.uint16("inaproto.rank", "Rank")
f.ring_size = ProtoField.uint16("inaproto.ring_size", "Ring size")
f.msg_len = ProtoField.uint16("inaproto.msg_len", "Packets of the message")
f.signature = ProtoField.uint16("inaproto.signature", "Digest of type, reduction and shape", base.HEX)
f.key = ProtoField.bytes("inaproto.key", "Key of the ring")

local opcode_of = Field.new("infiniband.bth.opcode")

local HEADER_BYTES = 40
local BTH_AT_UDP = 8
-- Behind the UDP header: BTH, RETH and, in ONLY packets with immediate, four bytes more.
local DATA_AT = { [0x06] = 12 + 16, [0x0a] = 12 + 16, [0x0b] = 12 + 16 + 4 }
local ETHERNET_IP = 14 + 20

function ina.dissector(buffer, pinfo, tree)
  local opcode = opcode_of()
  if opcode == nil then return end
  local behind = DATA_AT[opcode.value]
  if behind == nil then return end
  local at = ETHERNET_IP + BTH_AT_UDP + behind
  if buffer:len() < at + HEADER_BYTES + 4 then return end
  local tag = buffer(at, 4):string()
  if tag ~= "INAP" and tag ~= "INAH" then return end
  local range = buffer(at, HEADER_BYTES)
  local node = tree:add(ina, range)
  node:add(f.magic, range(0, 4))
  node:add(f.version, range(4, 1))
  node:add(f.dtype, range(5, 1))
  node:add(f.op, range(6, 1))
  local flags = node:add(f.flags, range(7, 1))
  flags:add(f.last, range(7, 1))
  flags:add(f.result, range(7, 1))
  if tag == "INAH" then flags:add(f.kind, range(7, 1)) end
  node:add(f.ring_id, range(8, 4))
  node:add(f.epoch, range(12, 4))
  node:add(f.op_index, range(16, 4))
  node:add(f.msg_id, range(20, 4))
  node:add(f.rank, range(24, 2))
  node:add(f.ring_size, range(26, 2))
  node:add(f.msg_len, range(28, 2))
  node:add(f.signature, range(30, 2))
  node:add(f.key, range(32, 8))
  local is_result = bit.band(range(7, 1):uint(), 2) ~= 0
  local text = string.format("ring %d rank %d/%d message %d x%d%s", range(8, 4):uint(), range(24, 2):uint(),
    range(26, 2):uint(), range(20, 4):uint(), range(28, 2):uint(), is_result and " result" or "")
  node:append_text(": " .. text)
  pinfo.cols.info:append(" INA " .. text)
end

register_postdissector(ina)
